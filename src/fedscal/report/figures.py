"""The figures, one function each: a run in, an svg element out; empty if there is nothing to draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedscal.experiment.load import Run
from fedscal.experiment.outcome import Grid, epoch_grid, outcome, round_grid, series
from fedscal.experiment.records import AVERAGE, Traffic
from fedscal.report.svg import drawing, label, to_svg
from fedscal.runtime.signals import SIGNALS

WIDTH = 7.8  # inches
# Okabe and Ito's palette for colour-blind readers, without its yellow.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f4fa3")
INK, MARK, ABSENT = "#1c2733", "#5b6570", "#d0d6db"
MARKERS_UP_TO = 30  # rounds; beyond that the points are a line anyway
ROW_HEIGHT, TALLEST = 0.19, 7.0  # inches of a heat map, for one client and for all
Curves = Mapping[str, Sequence[float]]


class Panel(NamedTuple):
    """A heat map: its values, and the range of its colours."""

    heading: str
    grid: Grid
    limits: tuple[float, float] | None = None
    diverging: bool = False

    def range(self) -> tuple[float, float]:
        """Return the values of the two ends of the colours; diverging ones are white at zero."""
        low, high = self.limits or (float(np.nanmin(self.grid.values)), float(np.nanmax(self.grid.values)))
        if self.diverging:
            high = max(abs(low), abs(high), 1e-6)
            return -high, high
        return (low, high) if high - low > 1e-9 else (low - 0.5, high + 0.5)


def accuracy(run: Run) -> str:
    """Draw the accuracy of the server model by domain, and of the participants' own models."""
    participants = dict(series(run, lambda line: line.accuracy.clients.named))
    participants.pop(AVERAGE, None)  # its domains differ from round to round
    title = "Accuracy of the server model over the rounds"
    server = series(run, lambda line: line.accuracy.server.named)
    return _domain_curves(run, "accuracy", title, server, participants)


def pseudo_labels(run: Run) -> str:
    """Draw how many pseudo-labels are right, by domain."""
    title = "Pseudo-label accuracy over the rounds"
    curves = series(run, lambda line: line.pseudo_label_accuracy.named)
    return _domain_curves(run, "pseudo-labels", title, curves, {})


def signals(run: Run) -> str:
    """Draw the label-free signals as small multiples."""
    curves = series(run, lambda line: line.signals)
    shown = [name for name in (*SIGNALS, *curves) if _any_finite(curves.get(name, ()))]
    shown = list(dict.fromkeys(shown))  # the registered ones first, each once
    if not shown:
        return ""
    with drawing():
        figure, axes = canvas(math.ceil(len(shown) / 3) * 2.1, math.ceil(len(shown) / 3), min(3, len(shown)))
        for axis, name, colour in zip(axes, shown, COLOURS, strict=False):
            _line(axis, _rounds(run), curves[name], colour)
            axis.set_title(label(name))
            _mark_selected(axis, run)
        for axis in axes[len(shown) :]:
            axis.set_visible(False)
        return to_svg(figure, "signals", "Label-free signals over the rounds")


def thresholds(run: Run) -> str:
    """Draw the adaptive threshold and the skewness that moves it, by client and local epoch."""
    panels = (
        Panel("Threshold τ", epoch_grid(run, "alignment.tau")),
        Panel("Skewness \N{GREEK SMALL LETTER GAMMA}", epoch_grid(run, "alignment.gamma"), diverging=True),
    )
    return _heat_maps("thresholds", "Threshold and skewness by client and local epoch", panels)


def shares(run: Run) -> str:
    """Draw the share of samples over the threshold, for the client's and the server's part of the loss."""
    panels = (
        Panel("Client model", epoch_grid(run, "alignment.share_local"), limits=(0.0, 1.0)),
        Panel("Server model", epoch_grid(run, "alignment.share_server"), limits=(0.0, 1.0)),
    )
    return _heat_maps("shares", "Share of samples over the threshold by client and local epoch", panels)


def entropy(run: Run) -> str:
    """Draw the mean entropy of the server model's predictions on each client's data."""
    grid = round_grid(run, lambda client: client.signals.get("entropy", math.nan))
    return _heat_maps("entropy", "Entropy by client and round", [Panel("", grid)])


def drift(run: Run) -> str:
    """Draw how far each client's model moved from the one it was sent."""
    grid = round_grid(run, lambda client: client.drift)
    return _heat_maps("drift", "Weight drift by client and round", [Panel("", grid)])


def cost(run: Run) -> str:
    """Draw the seconds and the bytes of each round."""
    times, traffic = [line.seconds for line in run.rounds], [line.bytes or Traffic() for line in run.rounds]
    panels = {
        "Seconds per round": {"adapt": [t.adapt for t in times], "evaluate": [t.evaluate for t in times]},
        "Megabytes per round": {"down": [t.down / 1e6 for t in traffic], "up": [t.up / 1e6 for t in traffic]},
    }
    if not np.nan_to_num([bars for parts in panels.values() for bars in parts.values()]).any():
        return ""
    with drawing():
        figure, axes = canvas(2.2, 1, 2)
        for axis, (title, parts) in zip(axes, panels.items(), strict=True):
            below = np.zeros(len(run.rounds))
            for (name, bars), colour in zip(parts.items(), (COLOURS[0], COLOURS[5]), strict=True):
                axis.bar(_rounds(run), np.nan_to_num(bars), bottom=below, color=colour, label=name)
                below = np.nan_to_num(bars)
            axis.set_title(title)
            _round_axis(axis)
            axis.legend(ncols=2, loc="lower left", bbox_to_anchor=(0.45, 1.0), fontsize=8)
        return to_svg(figure, "cost", "Time and bytes of each round")


def methods(
    name: str, title: str, curves: Mapping[str, tuple[Sequence[int], Any]], unit: str = "accuracy, %"
) -> str:
    """Draw the mean of each method over the rounds, with the standard deviation as a band.

    ``curves`` are by method the rounds, and the values as an array (seeds, rounds).
    """
    if not curves:
        return ""
    with drawing():
        figure, (axis,) = canvas(3.4)
        for index, (method, (rounds, values)) in enumerate(curves.items()):
            colour, dash = COLOURS[index % len(COLOURS)], ("-", "--", ":")[index // len(COLOURS) % 3]
            mean = values.mean(axis=0)
            if len(rounds) == 1:  # a method that adapts nothing is drawn as a level
                axis.axhline(mean[0], color=MARK, linestyle=(0, (1, 2)), label=label(method))
                continue
            axis.plot(rounds, mean, dash, color=colour, label=label(method), linewidth=1.6)
            if len(values) > 1:
                band = values.std(axis=0, ddof=1)
                axis.fill_between(rounds, mean - band, mean + band, color=colour, alpha=0.15, linewidth=0)
        axis.set_ylabel(unit)
        _round_axis(axis)
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return to_svg(figure, name, title)


def _domain_curves(run: Run, name: str, title: str, curves: Curves, dashed: Curves) -> str:
    """Draw one curve per domain, the average in black, and a second, dashed set in the same colours."""
    if not any(map(_any_finite, curves.values())):
        return ""
    domains = [domain for domain in dict.fromkeys((*curves, *dashed)) if domain != AVERAGE]
    colours = {domain: COLOURS[index % len(COLOURS)] for index, domain in enumerate(domains)} | {AVERAGE: INK}
    with drawing():
        figure, (axis,) = canvas(3.2)
        for domain, values in dashed.items():
            _line(axis, _rounds(run), values, colours[domain], linestyle=(0, (3, 2)), linewidth=0.9)
        handles = [
            _line(axis, _rounds(run), values, colours[domain], linewidth=2.0 if domain == AVERAGE else 1.4)
            for domain, values in curves.items()
        ]
        names = [label(domain) for domain in curves]
        if any(map(_any_finite, dashed.values())):
            handles.append(Line2D([], [], color=MARK, linestyle=(0, (3, 2)), linewidth=0.9))
            names.append("participants' own")
        marked = _mark_selected(axis, run)
        if marked:
            handles.append(marked)
            names.append("label-free choice")
        axis.set_ylabel("accuracy, %")
        axis.legend(handles, names, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return to_svg(figure, name, title)


def _heat_maps(name: str, title: str, panels: Sequence[Panel]) -> str:
    """Draw the heat maps one below the other; cells without a value stay grey."""
    shown = [panel for panel in panels if not panel.grid.empty]
    if not shown:
        return ""
    height = min(TALLEST, max(0.9, ROW_HEIGHT * len(shown[0].grid.rows))) + 0.6
    with drawing():
        figure, axes = canvas(height * len(shown), len(shown))
        for axis, panel in zip(axes, shown, strict=True):
            _heat_map(figure, axis, panel)
        return to_svg(figure, name, title)


def _heat_map(figure: Figure, axis: Axes, panel: Panel) -> None:
    grid = panel.grid
    low, high = panel.range()
    colours = matplotlib.colormaps["RdBu_r" if panel.diverging else "viridis"].with_extremes(bad=ABSENT)
    # Without interpolation the svg holds one pixel per cell.
    image = axis.imshow(grid.values, aspect="auto", interpolation="none", cmap=colours, vmin=low, vmax=high)
    figure.colorbar(image, ax=axis, pad=0.015, aspect=12)
    axis.set_title(panel.heading)
    axis.grid(visible=False)
    starts = [i for i, index in enumerate(grid.columns) if i == 0 or grid.columns[i - 1] != index]
    starts = starts[:: max(1, math.ceil(len(starts) / 12))]
    axis.set_xticks(starts, [str(grid.columns[i]) for i in starts])
    axis.set_xlabel("round")
    step = math.ceil(len(grid.rows) * ROW_HEIGHT / TALLEST)
    axis.set_yticks(range(0, len(grid.rows), step), [label(row) for row in grid.rows[::step]], fontsize=8)


def canvas(height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure as wide as a page, and its axes row by row."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _line(axis: Axes, rounds: Sequence[int], values: Sequence[float], colour: str, **style: Any) -> Line2D:
    """Draw the finite points of a curve, joined over the rounds that have none."""
    points = [(x, y) for x, y in zip(rounds, values, strict=True) if math.isfinite(y)]
    marker = "o" if len(rounds) <= MARKERS_UP_TO or len(points) == 1 else ""
    (line,) = axis.plot(
        *np.array(points).reshape(-1, 2).T, color=colour, marker=marker, markersize=2.5, **style
    )
    _round_axis(axis)
    return line


def _mark_selected(axis: Axes, run: Run) -> Line2D | None:
    chosen = outcome(run).selected_round
    if chosen is None:
        return None
    return axis.axvline(chosen, color=MARK, linestyle=":", linewidth=1.3, zorder=1.5)


def _round_axis(axis: Axes) -> None:
    axis.set_xlabel("round")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def _rounds(run: Run) -> list[int]:
    return [line.round for line in run.rounds]


def _any_finite(values: Sequence[float]) -> bool:
    return any(map(math.isfinite, values))
