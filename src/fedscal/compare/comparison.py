"""Several runs side by side: one table per source, one row per method, mean and deviation over the seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from statistics import fmean

import numpy as np
import numpy.typing as npt

from fedscal.compare.row_labels import USUAL_BASELINE, Row, caveats, rows_of
from fedscal.core.table import Table
from fedscal.core.text import plain, spans, spread
from fedscal.experiment.load import Run, natural
from fedscal.experiment.outcome import domains_of, outcome
from fedscal.experiment.records import AVERAGE, Accuracies, RoundRecord, Scores
from fedscal.methods import METHODS

_VARIED = {"benchmark", "source", "method", "adaptation", "seed"}
"""What a comparison is about."""
_EXECUTION_ONLY_KEYS = {"out", "workers", "threads", "device"}
"""How a run is executed, not what it computes."""
_HEADLINE = "average, last round"
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
        """What each run came to."""
        return [outcome(run).accuracy for run in self.runs]

    @property
    def mean(self) -> float:
        """Return the last round's average, by which the methods are ordered."""
        return fmean(accuracy.last.average for accuracy in self.accuracies)

    @property
    def seeds(self) -> str:
        """Return the seeds, drawn together."""
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
            self.cell(lambda one: one.source_only),
            *(self.cell(lambda one: one.last, domain) for domain in domains),
            self.cell(lambda one: one.last),
            self.cell(lambda one: one.selected),
            self.cell(lambda one: one.best),
        ]

    def curve(self) -> Curve | None:
        """Return the average accuracy in the rounds that every seed has."""
        return _stacked([_by_round(run, lambda line: line.accuracy.server) for run in self.runs])

    def label_gap(self, other: MethodRow) -> Curve | None:
        """Return by how much more of the pseudo-labels are right than the other's, seed by seed."""
        theirs = {run.fact("seed"): _pseudo_labels(run) for run in other.runs}
        gaps = []
        for run in self.runs:
            against, mine = theirs.get(run.fact("seed"), {}), _pseudo_labels(run)
            gaps.append({at: mine[at] - against[at] for at in mine if at in against})
        return _stacked([gap for gap in gaps if gap])


@dataclass(frozen=True)
class SourceTable:
    """All methods on one source, the best of the last round first."""

    benchmark: str
    source: str
    rows: Sequence[MethodRow]

    def table(self) -> Table:
        """Return the table, wherever it is shown: last round first, the oracle named as one."""
        known = {name for row in self.rows for one in row.accuracies for name in domains_of(one)}
        domains = sorted(known, key=natural)
        later = (_HEADLINE, "label-free choice", "best round (oracle)")
        return Table(
            title=f"{self.benchmark}, source {self.source or 'a given model'}",
            header=["method", "seeds", "source model", *domains, *later],
            rows=[row.cells(domains) for row in self.rows],
            notes=caveats(row.row for row in self.rows),
            headline=_HEADLINE,
        )

    @property
    def curves(self) -> Mapping[str, Curve]:
        """Return the methods' curves, those that have one."""
        found = ((row.method, row.curve()) for row in self.rows)
        return {method: curve for method, curve in found if curve is not None}

    @property
    def label_gaps(self) -> Mapping[str, Curve]:
        """Return how far each method's pseudo-labels are ahead of the usual baseline's, if it is here."""
        base = next((row for row in self.rows if row.method == METHODS[USUAL_BASELINE].title), None)
        if base is None:
            return {}
        found = ((row.method, row.label_gap(base)) for row in self.rows if row is not base)
        return {method: gap for method, gap in found if gap is not None and len(gap[0]) > 1}


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
    """Divide the runs into those that can be compared, and the reason for leaving each other one out."""
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
    """Return the tables by benchmark and source, in the order of the runs.

    Args:
        runs: usable runs.
        named: the row of each, if more runs than these decide what a row is called.
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
    """Return the settings that differ between the runs though the comparison is not about them."""
    named = {key for row in rows(runs) for key, _ in row.named}  # the tables say these themselves
    keys = sorted({key for run in runs for key in run.spec} - _VARIED - _EXECUTION_ONLY_KEYS - named)
    values = {key: sorted({plain(run.spec.get(key, "unset")) for run in runs}, key=natural) for key in keys}
    return {key: found for key, found in values.items() if len(found) > 1}


def repeated(tables: Sequence[SourceTable]) -> Sequence[str]:
    """Name the rows in which a seed occurs twice: such runs are no independent repetitions."""
    return [
        f"{table.source}: {row.method}"
        for table in tables
        for row in table.rows
        if len({run.fact("seed") for run in row.runs}) < len(row.runs)
    ]
