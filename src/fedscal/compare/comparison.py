"""Runs compared: one table per source, one row per method, mean and deviation over seeds; leaderboards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from statistics import fmean

import numpy as np
import numpy.typing as npt

from fedscal.compare.row_labels import USUAL_BASELINE, Row, caveats, rows_of
from fedscal.core.table import Table
from fedscal.core.text import UNKNOWN, plain, spans, spread
from fedscal.experiment.load import Run, natural
from fedscal.experiment.outcome import domains_of, outcome
from fedscal.experiment.records import AVERAGE, Accuracies, RoundRecord, Scores
from fedscal.methods import METHODS

_VARIED = {"benchmark", "source", "method", "adaptation", "seed"}
"""Keys that a comparison varies."""
_EXECUTION_ONLY_KEYS = {"out", "workers", "threads", "device"}
"""How a run is executed, not what it computes."""
_HEADLINE = "average, last round"
_LEADERBOARD_NOTES = (
    "Average over the target domains in the last round, mean ± standard deviation over the seeds. Rows are "
    "ordered by the mean over the sources, which is given to those that have all of them. Highest: from how "
    "many sources the row has the highest average. A lead may be luck: see the table of all sources.",
)
Curve = tuple[Sequence[int], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class MethodRow:
    """The runs of one row, a method with its settings, on one source."""

    row: Row
    runs: Sequence[Run]

    @property
    def method(self) -> str:
        """The row's label."""
        return self.row.label

    @cached_property
    def accuracies(self) -> Sequence[Accuracies]:
        """The accuracies of each run."""
        return [outcome(run).accuracy for run in self.runs]

    @property
    def mean(self) -> float:
        """Return the last round's average, by which the methods are ordered."""
        return fmean(accuracy.last.average for accuracy in self.accuracies)

    @property
    def seeds(self) -> str:
        """Return the seeds as spans."""
        seeds = [run.fact("seed") for run in self.runs]
        return spans(map(int, seeds)) if all(seed.isdecimal() for seed in seeds) else ", ".join(seeds)

    def cell(self, take: Callable[[Accuracies], Scores], domain: str = AVERAGE) -> str:
        """Return mean and deviation over the seeds."""
        return spread([take(accuracy).of(domain) for accuracy in self.accuracies])

    def cells(self, domains: Sequence[str]) -> list[str]:
        """Return the row's text in the table of a source."""
        return [
            self.method,
            self.seeds,
            self.cell(lambda accuracy: accuracy.source_only),
            *(self.cell(lambda accuracy: accuracy.last, domain) for domain in domains),
            self.cell(lambda accuracy: accuracy.last),
            self.cell(lambda accuracy: accuracy.selected),
            self.cell(lambda accuracy: accuracy.best),
        ]

    def curve(self) -> Curve | None:
        """Return the average accuracy in the rounds that every seed has."""
        return _stacked([_by_round(run, lambda line: line.accuracy.server) for run in self.runs])

    def label_gap(self, other: MethodRow) -> Curve | None:
        """Return the pseudo-label accuracy minus the other row's, seed by seed."""
        theirs = {run.fact("seed"): _pseudo_labels(run) for run in other.runs}
        gaps = []
        for run in self.runs:
            baseline, mine = theirs.get(run.fact("seed"), {}), _pseudo_labels(run)
            gaps.append({index: mine[index] - baseline[index] for index in mine if index in baseline})
        return _stacked([gap for gap in gaps if gap])


@dataclass(frozen=True)
class SourceTable:
    """All methods on one source, the best of the last round first."""

    benchmark: str
    source: str
    rows: Sequence[MethodRow]

    def table(self) -> Table:
        """Return the table."""
        names = {name for row in self.rows for accuracy in row.accuracies for name in domains_of(accuracy)}
        domains = sorted(names, key=natural)
        later = (_HEADLINE, "label-free choice", "best round (oracle)")
        return Table(
            title=f"{self.benchmark}, source {self.source or 'a given model'}",
            header=["method", "seeds", "source model", *domains, *later],
            rows=[row.cells(domains) for row in self.rows],
            notes=caveats(row.row.method for row in self.rows),
            headline=_HEADLINE,
        )

    @property
    def curves(self) -> Mapping[str, Curve]:
        """Return the curves of the methods that have one."""
        return {row.method: curve for row in self.rows if (curve := row.curve()) is not None}

    @property
    def label_gaps(self) -> Mapping[str, Curve]:
        """Return each method's pseudo-label accuracy minus the usual baseline's, if that is here."""
        base = next((row for row in self.rows if row.method == METHODS[USUAL_BASELINE].title), None)
        if base is None:
            return {}
        gaps = ((row.method, row.label_gap(base)) for row in self.rows if row is not base)
        return {method: gap for method, gap in gaps if gap is not None and len(gap[0]) > 1}


def _by_round(run: Run, take: Callable[[RoundRecord], Scores]) -> dict[int, float]:
    """Return the average over the domains in every round that has one."""
    averages = {line.round: take(line).average for line in run.rounds}
    return {index: value for index, value in averages.items() if not math.isnan(value)}


def _pseudo_labels(run: Run) -> dict[int, float]:
    return _by_round(run, lambda line: line.pseudo_label_accuracy)


def _stacked(curves: Sequence[Mapping[int, float]]) -> Curve | None:
    """Return the rounds that all curves have, and their values there."""
    rounds = sorted(set.intersection(*map(set, curves))) if curves else []
    return (rounds, np.array([[curve[at] for at in rounds] for curve in curves])) if rounds else None


def usable(runs: Sequence[Run]) -> tuple[Sequence[Run], Mapping[str, str]]:
    """Return the runs that can be compared, and the reason for leaving out each of the others."""
    left_out = {}
    for run in runs:
        if not run.finished:
            left_out[str(run.path)] = f"unfinished, {run.last_round} rounds recorded"
        elif not math.isfinite(outcome(run).accuracy.last.average):
            left_out[str(run.path)] = "without labels, accuracy unknown"
    return [run for run in runs if str(run.path) not in left_out], left_out


def rows(runs: Sequence[Run]) -> Sequence[Row]:
    """Return the row that each run belongs to."""
    facts = ("benchmark", "source", "method", "adaptation")
    return rows_of([{**run.spec, **{name: run.fact(name) for name in facts}} for run in runs])


def source_tables(runs: Sequence[Run], named: Sequence[Row] | None = None) -> Sequence[SourceTable]:
    """Return the tables of usable runs by benchmark and source, in the order of the runs.

    ``named`` is the row of each, if more runs than these decide what a row is called.
    """
    groups: dict[tuple[str, str], dict[Row, list[Run]]] = {}
    for run, row in zip(runs, named or rows(runs), strict=True):
        methods = groups.setdefault((run.fact("benchmark"), run.fact("source")), {})
        methods.setdefault(row, []).append(run)
    return [
        SourceTable(benchmark, source, sorted(starmap(MethodRow, methods.items()), key=_rank))
        for (benchmark, source), methods in groups.items()
    ]


def _rank(row: MethodRow) -> tuple[float, str]:
    return -row.mean, row.method


def differences(runs: Sequence[Run]) -> Mapping[str, Sequence[str]]:
    """Return the settings that differ between the runs and are not varied on purpose.

    A key that a run's method does not have is no difference; one that runs of the same method have is.
    """
    named = {key for row in rows(runs) for key, _ in row.named}  # these are in the rows' labels
    keys = sorted({key for run in runs for key in run.spec} - _VARIED - _EXECUTION_ONLY_KEYS - named)
    values = {key: sorted(_values(key, runs), key=natural) for key in keys}
    return {key: several for key, several in values.items() if len(several) > 1}


def _values(key: str, runs: Sequence[Run]) -> set[str]:
    having = {_parts(run) for run in runs if key in run.spec}
    return {plain(run.spec.get(key, "unset")) for run in runs if _parts(run) in having}


def _parts(run: Run) -> tuple[str, str]:
    """Return what decides which keys a run has."""
    return run.fact("method"), run.fact("adaptation")


def repeated(tables: Sequence[SourceTable]) -> Sequence[str]:
    """Name the rows in which a seed occurs twice: such runs are no independent repetitions."""
    return [
        f"{table.source}: {row.method}"
        for table in tables
        for row in table.rows
        if len({run.fact("seed") for run in row.runs}) < len(row.runs)
    ]


def leaderboards(tables: Sequence[SourceTable]) -> Iterator[Table]:
    """Yield a leaderboard for every benchmark that has several methods from several sources."""
    for benchmark in dict.fromkeys(table.benchmark for table in tables):
        by_source = {table.source: table for table in tables if table.benchmark == benchmark}
        if len(by_source) > 1 and any(len(table.rows) > 1 for table in by_source.values()):
            yield _leaderboard(f"Leaderboard: {benchmark}", by_source)


def _leaderboard(title: str, tables: Mapping[str, SourceTable]) -> Table:
    methods: dict[str, dict[str, MethodRow]] = {}
    for source, table in tables.items():
        for row in table.rows:
            methods.setdefault(row.method, {})[source] = row
    ordered = sorted(methods.items(), key=lambda item: (-_mean(item[1], len(tables)), item[0]))
    rows = [[method, *_cells(results, tables)] for method, results in ordered]
    return Table(title, ["method", *tables, "mean", "highest"], rows, _LEADERBOARD_NOTES)


def _cells(results: Mapping[str, MethodRow], tables: Mapping[str, SourceTable]) -> list[str]:
    averages = [
        results[name].cell(lambda accuracy: accuracy.last) if name in results else UNKNOWN for name in tables
    ]
    mean = _mean(results, len(tables))
    # A table's rows are ordered by their average, so the first has the highest.
    highest = sum(
        table.rows[0].mean == results[name].mean for name, table in tables.items() if name in results
    )
    return [*averages, UNKNOWN if mean == -math.inf else f"{mean:.1f}", str(highest)]


def _mean(results: Mapping[str, MethodRow], sources: int) -> float:
    """Return the mean over the sources; minus infinity if one is missing: the others may be the easy ones."""
    return fmean(row.mean for row in results.values()) if len(results) == sources else -math.inf
