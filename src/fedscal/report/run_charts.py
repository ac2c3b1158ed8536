"""The charts of a run's rounds and clients; what has nothing to show is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedscal.experiment.load import Run
from fedscal.experiment.outcome import Grid, client_rows, epoch_grid, outcome, round_grid, series
from fedscal.experiment.records import AVERAGE, Traffic
from fedscal.report import crowd
from fedscal.report.charts import Bars, Chart, Exhibit, Heat, Lines, Series, Strip, number, numbers
from fedscal.runtime.signals import SIGNALS

_BETTER = ", ".join(f"{'higher' if signal.sign > 0 else 'lower'} {name}" for name, signal in SIGNALS.items())
MANY = 12
"""More sites than that are drawn as one shape, not as so many names."""
_MOST_COLUMNS = 120
"""Of a heat map: more would be thinner than can be seen, and most of the page's size."""
_SOLID_AND_DASHED = (
    "Round 0 is the source model. Solid: the server model on each domain; dashed: the models that this "
    "round's participants trained, on their own data."
)
_EACH = "Round 0 is the source model. A line is the server model on a domain; point at one for its name."
_AVERAGE = "Round 0 is the source model. The mean over the domains, each counted alike."
Curves = Mapping[str, Sequence[float]]


def curves(run: Run) -> list[Exhibit]:
    """Return accuracy and pseudo-labels over the rounds; none without labels."""
    server = series(run, lambda line: line.accuracy.server.named)
    own = dict(series(run, lambda line: line.accuracy.clients.named))
    own.pop(AVERAGE, None)  # its domains differ from round to round
    # With many domains the dashed set would double a shape that is full already.
    many = len(server) > MANY + 1
    caption = _EACH if many else _SOLID_AND_DASHED
    caption = caption if len(server) <= crowd.CROWD + 1 else _AVERAGE
    found = (
        Exhibit("accuracy", "Accuracy", caption, _lines(run, _few(server), "%", {} if many else own)),
        Exhibit(
            "pseudo-labels",
            "Pseudo-label accuracy",
            "How many of the labels that the clients guess for themselves, and learn from, are right.",
            _lines(run, _few(series(run, lambda line: line.pseudo_label_accuracy.named)), "%"),
        ),
    )
    return [*(one for one in found if _shows(one.chart)), *(crowd.spread(run) if crowd.is_crowd(run) else [])]


def _few(named: Curves) -> Curves:
    """Return the average alone of so many domains that their curves would hide each other."""
    return named if len(named) <= crowd.CROWD + 1 else {AVERAGE: named[AVERAGE]}


def signals(run: Run) -> list[Exhibit]:
    """Return a small chart for every label-free signal; the registered ones first."""
    found = series(run, lambda line: line.signals)
    names = dict.fromkeys((*SIGNALS, *found))
    caption = f"Usually a good sign: {_BETTER}. None is a proof."
    made = [
        Exhibit(f"signal-{place}", name, caption if place == 0 else "", _lines(run, {name: found[name]}))
        for place, name in enumerate(name for name in names if name in found)
    ]
    return [one for one in made if _shows(one.chart)]


def _lines(run: Run, named: Curves, unit: str = "", dashed: Curves | None = None) -> Lines:
    """Return one curve a domain, the average strongly, and a second, dashed set."""
    drawn = [
        Series(name=name, values=numbers(values), look="average" if name == AVERAGE else "plain")
        for name, values in named.items()
    ]
    drawn += [
        Series(name=name, values=numbers(values), look="dashed") for name, values in (dashed or {}).items()
    ]
    return Lines(rounds=_rounds(run), series=drawn, unit=unit, chosen=outcome(run).selected_round)


def client_strip(run: Run) -> list[Exhibit]:
    """Return the change at every client, if they are many: by accuracy, else by the classes in effect."""
    if crowd.is_crowd(run):
        return crowd.changes(run)
    rows = client_rows(run)
    if len(rows) <= MANY or run.last_round == 0:
        return []
    labelled = any(math.isfinite(row.delta) for row in rows)
    ends = [(row.before, row.after) if labelled else (row.classes_before, row.classes_after) for row in rows]
    chart = Strip(
        names=[row.name for row in rows],
        before=numbers(before for before, _ in ends),
        after=numbers(after for _, after in ends),
        unit="points" if labelled else "classes",
    )
    what = "Change of accuracy" if labelled else "Change of the number of classes in effect"
    caption = "A bar a client, from the one that lost most to the one that gained most."
    return [Exhibit("client-strip", f"{what} at {len(rows)} clients", caption, chart)]


class _Map(NamedTuple):
    """A heat map: what it shows, and the range of its colours if it is not that of its values."""

    name: str
    title: str
    caption: str
    grid: Callable[[Run], Grid]
    limits: tuple[float, float] | None = None
    diverging: bool = False

    def range(self, values: npt.NDArray[np.float64]) -> tuple[float, float]:
        """Return the values of the two ends of the colours; diverging ones are neutral at zero."""
        low, high = self.limits or (float(np.nanmin(values)), float(np.nanmax(values)))
        if self.diverging:
            high = max(abs(low), abs(high), 1e-6)
            return -high, high
        return (low, high) if high - low > 1e-9 else (low - 0.5, high + 0.5)


_MAPS = (
    _Map(
        "threshold",
        "Threshold τ",
        "One column a local epoch, or a round if there are many. Empty: the client did not take part.",
        lambda run: epoch_grid(run, "alignment.tau"),
    ),
    _Map(
        "skewness",
        "Skewness \N{GREEK SMALL LETTER GAMMA}",
        "Orange: the client is confident and its threshold is raised; blue: it is unsure and the threshold "
        "is lowered.",
        lambda run: epoch_grid(run, "alignment.gamma"),
        diverging=True,
    ),
    _Map(
        "share-local",
        "Share of samples over the threshold, client model",
        "Only these samples count in the alignment loss: at 0 nothing is aligned, at 1 nothing is filtered.",
        lambda run: epoch_grid(run, "alignment.share_local"),
        limits=(0.0, 1.0),
    ),
    _Map(
        "share-server",
        "Share of samples over the threshold, server model",
        "The same for the server's part of the loss.",
        lambda run: epoch_grid(run, "alignment.share_server"),
        limits=(0.0, 1.0),
    ),
    _Map(
        "entropy",
        "Entropy",
        "Mean entropy of the server model's predictions on each client's data: low is confident.",
        lambda run: round_grid(run, lambda client: client.signals.get("entropy", math.nan)),
    ),
    _Map(
        "drift",
        "Weight drift",
        "Distance between the model a client was sent and the one it sent back. A row that stands out pulls "
        "the average its way.",
        lambda run: round_grid(run, lambda client: client.drift),
    ),
)


def heat_maps(run: Run) -> list[Exhibit]:
    """Return what goes on inside the clients."""
    if crowd.is_crowd(run):
        return crowd.inside(run)
    grids = [(wanted, _thinned(wanted.grid(run))) for wanted in _MAPS]
    return [
        Exhibit(wanted.name, wanted.title, wanted.caption, _heat(wanted, grid))
        for wanted, grid in grids
        if not grid.empty
    ]


def _thinned(grid: Grid) -> Grid:
    """Keep the last local epoch of each round, and of many rounds some, where columns could not be seen."""
    if len(grid.columns) <= _MOST_COLUMNS:
        return grid
    last = {moment: place for place, moment in enumerate(grid.columns)}
    kept = list(last.values())[:: -(-len(last) // _MOST_COLUMNS)]
    return Grid(grid.rows, [grid.columns[place] for place in kept], grid.values[:, kept])


def _heat(wanted: _Map, grid: Grid) -> Heat:
    low, high = wanted.range(grid.values)
    return Heat(
        rows=grid.rows,
        columns=grid.columns,
        values=[numbers(row) for row in grid.values.tolist()],
        limits=(number(low), number(high)),
        diverging=wanted.diverging,
    )


def cost(run: Run) -> list[Exhibit]:
    """Return the seconds and the megabytes of each round."""
    times, traffic = [line.seconds for line in run.rounds], [line.bytes or Traffic() for line in run.rounds]
    seconds = {"adapt": [one.adapt for one in times], "evaluate": [one.evaluate for one in times]}
    sent = {
        "to clients": [one.down / 1e6 for one in traffic],
        "by clients": [one.up / 1e6 for one in traffic],
    }
    made = (
        Exhibit("seconds", "Seconds a round", "", _bars(run, seconds, "s")),
        Exhibit("megabytes", "Megabytes a round", "", _bars(run, sent, "MB")),
    )
    return [one for one in made if _shows(one.chart)]


def _bars(run: Run, parts: Curves, unit: str) -> Bars:
    bars = [Series(name=name, values=numbers(values)) for name, values in parts.items()]
    return Bars(rounds=_rounds(run), series=bars, unit=unit)


def _shows(chart: Chart) -> bool:
    """Whether a chart over the rounds has anything to show: a bar of zero is nothing."""
    drawn = chart.series if isinstance(chart, Lines | Bars) else ()
    values = [value for one in drawn for value in one.values]
    return any(values) if isinstance(chart, Bars) else any(value is not None for value in values)


def _rounds(run: Run) -> list[int]:
    return [line.round for line in run.rounds]
