"""The charts of a comparison: methods side by side, and over the rounds; who is first, in a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from fedscal.compare.comparison import Curve, MethodRow, SourceTable
from fedscal.core.text import count, percent
from fedscal.report.charts import Dot, Dots, Exhibit, Lines, Series, number, numbers

BANDS = 4
"""With more curves than that, bands hide each other; the script draws none."""


def charts(table: SourceTable, place: int) -> list[Exhibit]:
    """Return the charts of the table of one source; ``place`` tells them from those of another."""
    found = [
        Exhibit(
            f"dots-{place}",
            "Average accuracy in the last round",
            "A dot is the mean over the seeds, its line one standard deviation to each side, a tick one run; "
            "the ring is the source model.",
            Dots(dots=[_dot(row) for row in table.rows], unit="%"),
        ),
        Exhibit(
            f"methods-{place}",
            "Average accuracy over the rounds",
            f"Mean over the seeds of the server model's average accuracy; {_band(table)}.",
            _lines(table.curves, "%"),
        ),
        Exhibit(
            f"labels-{place}",
            "Pseudo-labels: difference to FedLoA over the rounds",
            "Accuracy of the clients' pseudo-labels minus FedLoA's in the same round with the same seed; "
            f"mean over the seeds; {_band(table)}.",
            _lines(table.label_gaps, "points"),
        ),
    ]
    return [one for one in found if not isinstance(one.chart, Lines) or one.chart.series]


def _band(table: SourceTable) -> str:
    if len(table.rows) <= BANDS:
        return "the band is one standard deviation"
    return "the standard deviation is named under the pointer"


def leads(tables: Sequence[SourceTable]) -> list[str]:
    """Say for each benchmark which two methods have the highest averages, of those with all sources."""
    sentences = []
    for benchmark in dict.fromkeys(table.benchmark for table in tables):
        mine = [table for table in tables if table.benchmark == benchmark]
        means: dict[str, list[float]] = {}
        for row in (row for table in mine for row in table.rows):
            means.setdefault(row.method, []).append(row.mean)
        whole = {name: fmean(values) for name, values in means.items() if len(values) == len(mine)}
        if len(whole) > 1:
            first, second = sorted(whole, key=lambda name: -whole[name])[:2]
            scope = f", mean over {count(len(mine), 'source')}" if len(mine) > 1 else ""
            sentences.append(
                f"Highest on {benchmark}: {first} {percent(whole[first])}, then {second} "
                f"{percent(whole[second])}{scope}."
            )
    return sentences


def _dot(row: MethodRow) -> Dot:
    last = [accuracy.last.average for accuracy in row.accuracies]
    return Dot(
        name=row.method,
        mean=number(row.mean),
        deviation=number(stdev(last)) if len(last) > 1 else None,
        values=numbers(last),
        before=number(fmean(accuracy.source_only.average for accuracy in row.accuracies)),
    )


def _lines(curves: Mapping[str, Curve], unit: str) -> Lines:
    rounds = sorted({at for named, _ in curves.values() for at in named})
    return Lines(
        rounds=rounds, series=[_series(name, one, rounds) for name, one in curves.items()], unit=unit
    )


def _series(name: str, curve: Curve, rounds: list[int]) -> Series:
    """Return the mean and the deviation at every round; a method that adapts nothing is a level."""
    at, values = curve
    means = dict(zip(at, values.mean(axis=0).tolist(), strict=True))
    if len(at) == 1:
        return Series(name=name, values=[number(means[at[0]])], look="level")
    bands = dict(zip(at, values.std(axis=0, ddof=1).tolist(), strict=True)) if len(values) > 1 else {}
    return Series(
        name=name,
        values=numbers(means.get(one, math.nan) for one in rounds),
        spread=numbers(bands.get(one, math.nan) for one in rounds) if bands else [],
    )
