"""The paper's number, ours and their difference for every cell of a printed table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from fedscal.experiment.load import load_run
from fedscal.experiment.records import Scores
from fedscal.experiment.run_directory import RunDirectory
from fedscal.paper.datasets import Copy
from fedscal.paper.printed import ALL, AVERAGE, accuracies, recomputed
from fedscal.paper.tables import Block, Entry, Variant

MOMENTS = ("last", "selected", "best")
RunScores = Mapping[str, Mapping[str, float]]
"""One run's accuracies by moment, and by target under the paper's names."""
BySeed = Mapping[int, RunScores]


@dataclass(frozen=True)
class Score:
    """One cell of a printed table.

    Attributes:
        block: the table.
        method: the row.
        source: what the source model was trained on; ``all``: the mean over the sources.
        target: the domain; ``average``: the mean over the targets.
        printed: what the paper prints here, if it does.
        paper: the same, but averages recomputed from their parts.
        ours: our values, one per seed, by moment: last round, selected round, best round (an oracle, and
            never the source model).
    """

    block: Block
    method: str
    source: str
    target: str
    printed: float | None
    paper: float | None
    ours: Mapping[str, Sequence[float]] = field(default_factory=dict)

    def mean(self, moment: str = "last") -> float:
        """Return our mean over the seeds, NaN if there is none."""
        values = self.ours.get(moment, ())
        return fmean(values) if values else math.nan

    def deviation(self, moment: str = "last") -> float:
        """Return our sample standard deviation over the seeds, NaN for fewer than two."""
        values = self.ours.get(moment, ())
        return stdev(values) if len(values) > 1 else math.nan

    def difference(self, moment: str = "last") -> float:
        """Return ours minus the paper's, NaN where one is missing."""
        return math.nan if self.paper is None else self.mean(moment) - self.paper


def scores(block: Block, entries: Sequence[Entry], copies: Mapping[str, Copy]) -> list[Score]:
    """Return every cell of a block, in the order of rows, sources and targets."""
    mine = [entry for entry in entries if entry.block == block and entry.cell.directory.finished]
    cells: list[Score] = []
    for variant in block.variants:
        runs = {source: _by_seed(mine, variant, source, copies) for source in block.sources}
        for source in (*block.sources, *([ALL] if len(block.sources) > 1 else [])):
            by_seed = _over_sources(runs) if source == ALL else runs[source]
            others = () if source == ALL or block.averages_only else block.domains
            for target in (*(name for name in others if name != source), AVERAGE):
                cells.append(_score(block, variant.title, source, target, by_seed))
    return cells


def _score(block: Block, method: str, source: str, target: str, by_seed: BySeed) -> Score:
    printed = accuracies(block.name).get((method, source, target))
    paper = recomputed(block.name, method, source) if target == AVERAGE else printed
    ours = {moment: [run[moment][target] for run in by_seed.values()] for moment in MOMENTS}
    return Score(block, method, source, target, printed, paper, ours)


def _by_seed(
    entries: Iterable[Entry], variant: Variant, source: str, copies: Mapping[str, Copy]
) -> dict[int, RunScores]:
    by_seed: dict[int, RunScores] = {}
    for entry in entries:
        if (entry.variant, entry.source) == (variant, source):
            folders = copies[entry.block.dataset].folders
            by_seed[entry.cell.spec.seed] = {
                moment: _renamed(found.domains, folders)
                for moment, found in _accuracies(entry.cell.directory).items()
            }
    return by_seed


def _accuracies(run: RunDirectory) -> dict[str, Scores]:
    """Return a run's accuracies by moment; the best round is one of adaptation, if there was any."""
    summary = run.summary()
    found = {moment: getattr(summary.accuracy, moment) for moment in MOMENTS}
    if summary.best_round == 0 and summary.rounds:
        adapted = [record.accuracy.server for record in load_run(run.path).rounds if record.round]
        found["best"] = max(adapted, key=lambda scores: scores.average, default=found["last"])
    return found


def _renamed(accuracy: Mapping[str, float], folders: Mapping[str, str]) -> dict[str, float]:
    """Return accuracies under the paper's names of the domains, with their average."""
    targets = {name: accuracy[folder] for name, folder in folders.items() if folder in accuracy}
    return {**targets, AVERAGE: fmean(targets.values())}


def _over_sources(runs: Mapping[str, BySeed]) -> dict[int, RunScores]:
    """Return the mean of the sources' averages, for the seeds that every source has."""
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in runs.values())))
    return {
        seed: {m: {AVERAGE: fmean(run[seed][m][AVERAGE] for run in runs.values())} for m in MOMENTS}
        for seed in seeds
    }
