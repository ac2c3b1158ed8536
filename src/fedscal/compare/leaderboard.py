"""Who leads: one row a method with its average from every source, the best over all sources first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from fedscal.compare.comparison import MethodRow, SourceTable
from fedscal.core.table import Table
from fedscal.core.text import UNKNOWN

_NOTES = (
    "Average over the target domains in the last round, mean ± standard deviation over the seeds. Rows are "
    "ordered by the mean over the sources, which is given to those that have all of them. Highest: from how "
    "many sources the row has the highest average. A lead may be luck: see the table of all sources.",
)
Results = Mapping[str, MethodRow]


def leaderboards(tables: Sequence[SourceTable]) -> Iterator[Table]:
    """Yield a leaderboard for every benchmark that has several methods from several sources."""
    for benchmark in dict.fromkeys(table.benchmark for table in tables):
        found = {table.source: table for table in tables if table.benchmark == benchmark}
        if len(found) > 1 and any(len(table.rows) > 1 for table in found.values()):
            yield _leaderboard(f"Leaderboard: {benchmark}", found)


def _leaderboard(title: str, found: Mapping[str, SourceTable]) -> Table:
    methods: dict[str, dict[str, MethodRow]] = {}
    for source, table in found.items():
        for row in table.rows:
            methods.setdefault(row.method, {})[source] = row
    ordered = sorted(methods.items(), key=lambda item: (-_mean(item[1], len(found)), item[0]))
    rows = [[method, *_cells(results, found)] for method, results in ordered]
    return Table(title, ["method", *found, "mean", "highest"], rows, _NOTES)


def _cells(results: Results, found: Mapping[str, SourceTable]) -> list[str]:
    averages = [
        results[source].cell(lambda one: one.last) if source in results else UNKNOWN for source in found
    ]
    mean = _mean(results, len(found))
    # A table's rows are ordered by their average, so the first has the highest.
    highest = sum(
        table.rows[0].mean == results[name].mean for name, table in found.items() if name in results
    )
    return [*averages, UNKNOWN if mean == -math.inf else f"{mean:.1f}", str(highest)]


def _mean(results: Results, sources: int) -> float:
    """Return the mean over the sources; less than any if one is missing: the others may be the easy ones."""
    return fmean(row.mean for row in results.values()) if len(results) == sources else -math.inf
