"""Several runs side by side: one table a source, one row a method, mean and deviation over the seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedscal.compare.rows import USUAL_BASELINE, Row, rows_of
from fedscal.core.text import plain, spans, spread
from fedscal.experiment.load import Run, natural
from fedscal.experiment.outcome import AVERAGE, Outcome, outcome, series
from fedscal.methods import METHODS

VARIED = {"benchmark", "source", "method", "adaptation", "seed"}  # what a comparison is about
CAREFREE = {"out", "workers", "threads", "device"}  # how a run is executed, not what it computes
_PSEUDO_LABELS = ("pseudo_label_accuracy",)
Curve = tuple[Sequence[int], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class MethodRow:
    """The runs of one row, a method with its settings, on one source."""

    method: str
    runs: Sequence[Run]
    outcomes: Sequence[Outcome]

    @property
    def mean(self) -> float:
        """Return the last round's average, by which the methods are ordered."""
        return math.fsum(self._values("last", AVERAGE)) / len(self.outcomes)

    @property
    def seeds(self) -> str:
        """Return the seeds, drawn together."""
        seeds = [run.fact("seed") for run in self.runs]
        return spans(map(int, seeds)) if all(seed.isdecimal() for seed in seeds) else ", ".join(seeds)

    def cell(self, stage: str, domain: str = AVERAGE) -> str:
        """Return mean and deviation over the seeds of one stage (``last``, ``best``, ...)."""
        return spread(self._values(stage, domain))

    def _values(self, stage: str, domain: str) -> list[float]:
        scores: list[Mapping[str, float]] = [getattr(result, stage) for result in self.outcomes]
        return [score.get(domain, math.nan) for score in scores]

    def curve(self) -> Curve | None:
        """Return the average accuracy in the rounds that every seed has."""
        return _stacked([_by_round(run, "accuracy", "server") for run in self.runs])

    def label_gap(self, other: MethodRow) -> Curve | None:
        """Return by how much more of the pseudo-labels are right than the other's, seed by seed."""
        theirs = {run.fact("seed"): _by_round(run, *_PSEUDO_LABELS) for run in other.runs}
        gaps = []
        for run in self.runs:
            against = theirs.get(run.fact("seed"), {})
            mine = _by_round(run, *_PSEUDO_LABELS)
            gaps.append({at: mine[at] - against[at] for at in mine if at in against})
        return _stacked([gap for gap in gaps if gap])


@dataclass(frozen=True)
class SourceTable:
    """All methods on one source."""

    benchmark: str
    source: str
    domains: Sequence[str]
    rows: Sequence[MethodRow]

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


def _by_round(run: Run, *keys: str) -> dict[int, float]:
    """Return the average over the domains in every round that has one."""
    values = series(run, *keys).get(AVERAGE, [math.nan] * len(run.rounds))
    pairs = zip(run.rounds, values, strict=True)
    return {int(line["round"]): value for line, value in pairs if not math.isnan(value)}


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
        elif not math.isfinite(outcome(run).last.get(AVERAGE, math.nan)):
            left_out[str(run.path)] = "without labels, accuracy unknown"
    return [run for run in runs if str(run.path) not in left_out], left_out


def rows(runs: Sequence[Run]) -> Sequence[Row]:
    """Return the row that each run belongs to."""
    facts = ("benchmark", "source", "method", "adaptation")
    return rows_of([{**run.spec, **{name: run.fact(name) for name in facts}} for run in runs])


def source_tables(runs: Sequence[Run]) -> Sequence[SourceTable]:
    """Return the tables by benchmark and source, the best method of each first."""
    groups: dict[tuple[str, str], dict[str, list[Run]]] = {}
    for run, row in zip(runs, rows(runs), strict=True):
        methods = groups.setdefault((run.fact("benchmark"), run.fact("source")), {})
        methods.setdefault(row.label, []).append(run)
    tables = []
    for (benchmark, source), methods in sorted(groups.items()):
        lines = [MethodRow(method, found, list(map(outcome, found))) for method, found in methods.items()]
        lines.sort(key=lambda line: (-line.mean, line.method))
        domains = sorted(
            {name for line in lines for out in line.outcomes for name in out.domains}, key=natural
        )
        tables.append(SourceTable(benchmark, source, domains, lines))
    return tables


def differences(runs: Sequence[Run]) -> Mapping[str, Sequence[str]]:
    """Return the settings that differ between the runs though the comparison is not about them."""
    named = {key for row in rows(runs) for key, _ in row.named}  # the tables say these themselves
    keys = sorted({key for run in runs for key in run.spec} - VARIED - CAREFREE - named)
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
