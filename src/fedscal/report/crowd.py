"""So many clients that names no longer help: where they lie, how far they moved, who is at the ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from fedscal.experiment.client_table import ClientTable, column, last_epoch
from fedscal.experiment.journal import CLIENTS
from fedscal.experiment.load import Run
from fedscal.experiment.outcome import Change, ClientRow, client_rows, outcome
from fedscal.experiment.records import RoundRecord
from fedscal.report.charts import Bands, Exhibit, Histogram, numbers

CROWD = 40
"""Clients that a chart still shows one by one."""
_ENDS = 10
"""Clients that are named at either end."""
_QUANTILES = (5, 25, 50, 75, 95)
_BINS = 30
_WIDTHS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Of a histogram's bins: round numbers, in points or classes."""
_HOW = "Line: the median client. Strong: half of the clients. Faint: nine of ten."
Row = TypeVar("Row", bound=Change)


class _Shown(NamedTuple):
    """Something that every client has a number of."""

    name: str
    title: str
    caption: str
    take: Callable[[RoundRecord], Sequence[float]]
    unit: str = ""
    factor: float = 1.0


def _field(name: str) -> Callable[[RoundRecord], Sequence[float]]:
    return lambda line: column(line.clients, name)


def _epoch(name: str) -> Callable[[RoundRecord], Sequence[float]]:
    return lambda line: last_epoch(line.clients, name)


_SPREAD = (
    _Shown("client-accuracy", "Accuracy, client by client", _HOW, _field("accuracy"), "%"),
    _Shown(
        "client-agreement",
        "Answers like the source model's, client by client",
        f"{_HOW} A share that falls fast is a run that runs away.",
        _field("agreement"),
        "%",
        100.0,
    ),
)
_INSIDE = (
    _Shown("threshold", "Threshold τ", f"Of a round's participants. {_HOW}", _epoch("alignment.tau")),
    _Shown(
        "skewness",
        "Skewness \N{GREEK SMALL LETTER GAMMA}",
        "Above 0 a client is confident and its threshold is raised.",
        _epoch("alignment.gamma"),
    ),
    _Shown(
        "share-local",
        "Share of samples over the threshold, client model",
        "At 0 nothing is aligned, at 1 nothing is filtered.",
        _epoch("alignment.share_local"),
    ),
    _Shown(
        "share-server",
        "Share of samples over the threshold, server model",
        "The same for the server's part of the loss.",
        _epoch("alignment.share_server"),
    ),
    _Shown("entropy", "Entropy", "Of the server model's predictions: low is confident.", _field("entropy")),
    _Shown("drift", "Weight drift", "Of the models that were sent back.", _field("drift")),
)


def is_crowd(run: Run) -> bool:
    """Whether a run has so many clients."""
    return len(run.clients) > CROWD


def spread(run: Run) -> list[Exhibit]:
    """Return where the clients lie in every round: by accuracy, and by agreement with the source model."""
    return _drawn(run, _SPREAD, outcome(run).selected_round)


def inside(run: Run) -> list[Exhibit]:
    """Return what goes on inside the clients."""
    return _drawn(run, _INSIDE, None)


def _drawn(run: Run, shown: Sequence[_Shown], chosen: int | None) -> list[Exhibit]:
    made = [(one, _bands(run, one, chosen)) for one in shown]
    return [
        Exhibit(one.name, one.title, one.caption, bands)
        for one, bands in made
        if any(value is not None for value in bands.values[0])
    ]


def _bands(run: Run, shown: _Shown, chosen: int | None) -> Bands:
    found = [_quantiles(shown.take(line), shown.factor) for line in run.rounds]
    return Bands(
        rounds=[line.round for line in run.rounds],
        values=[numbers(row) for row in zip(*found, strict=True)],
        unit=shown.unit,
        chosen=chosen,
    )


def _quantiles(values: Sequence[float], factor: float) -> Sequence[float]:
    """Return the quantiles of the clients that have the number; NaN if none has."""
    known = np.array(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return [math.nan] * len(_QUANTILES)
    quantiles: Sequence[float] = (factor * np.percentile(known, _QUANTILES)).tolist()
    return quantiles


def changes(run: Run) -> list[Exhibit]:
    """Return how many clients changed by how much: by accuracy, else by the classes in effect."""
    rows = client_rows(run)
    labelled = any(math.isfinite(row.delta) for row in rows)
    known = [value for value in map(_by(labelled), rows) if math.isfinite(value)]
    if not known or run.last_round == 0:
        return []
    what = "accuracy" if labelled else "the number of classes in effect"
    unit = "points" if labelled else "classes"
    title = f"Change of {what} at {len(known):,} clients"
    caption = (
        "How many clients changed by how much, from the source model to the last round that they judged."
    )
    return [Exhibit("client-strip", title, caption, _histogram(known, unit))]


def _by(labelled: bool) -> Callable[[ClientRow], float]:
    return lambda row: row.delta if labelled else row.classes_after - row.classes_before


def _histogram(values: Sequence[float], unit: str) -> Histogram:
    """Count values in bins of a round width, one of them around zero."""
    low, high = min(0.0, *values), max(0.0, *values)
    width = next((w for w in _WIDTHS if (high - low) / w <= _BINS), (high - low) / _BINS)
    first, last = math.floor(low / width + 0.5), math.floor(high / width + 0.5)
    edges = [(place - 0.5) * width for place in range(first, last + 2)]
    counts, _ = np.histogram(values, edges)
    return Histogram(edges=numbers(edges), counts=counts.tolist(), unit=unit)


def at_the_ends(rows: Sequence[Row], by: Callable[[Row], float] = lambda row: row.delta) -> Sequence[Row]:
    """Return of many the ten that lost most and the ten that gained most, in this order."""
    if len(rows) <= CROWD:
        return rows
    known = sorted((row for row in rows if math.isfinite(by(row))), key=by) or list(rows)
    return [*known[:_ENDS], *known[max(_ENDS, len(known) - _ENDS) :]]


def clients_at_the_ends(run: Run) -> Sequence[ClientRow]:
    """Return the clients that a table names: all of few."""
    rows = client_rows(run)
    return at_the_ends(rows, _by(any(math.isfinite(row.delta) for row in rows)))


def file_of_clients(run: Run) -> str:
    """Return the file that has the clients of the last round, for whoever wants all of them."""
    last = run.rounds[-1] if run.rounds else None
    table = last is not None and isinstance(last.clients, ClientTable)
    return f"{CLIENTS}/round-{last.round:04}.npz" if last and table else "metrics.jsonl"
