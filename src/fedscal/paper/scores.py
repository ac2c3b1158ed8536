"""The paper's number, ours and their difference for every cell of a printed table, and the paper's claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from fedscal.paper.datasets import Copy
from fedscal.paper.printed import ALL, AVERAGE, accuracies, recomputed
from fedscal.paper.tables import Block, Entry, Variant

MOMENTS = ("last", "selected", "best")
_WITHIN = 2.0
"""Largest difference in points of an average that counts as reproduced."""
_ORDER = (
    ("FedLoA", "FedSCAl", "FedSCAl is better than FedLoA"),
    ("neither alignment", "client alignment", "the client's alignment helps"),
    ("neither alignment", "server alignment", "the server's alignment helps"),
    ("client alignment", "both alignments", "both alignments are better than the client's alone"),
    ("server alignment", "both alignments", "both alignments are better than the server's alone"),
    ("fixed threshold", "adaptive threshold", "the adaptive threshold is better than the fixed one"),
)
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
        ours: our values, one per seed, by moment: last round, selected round, best round (an oracle).
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

    @property
    def difference(self) -> float:
        """Ours in the last round minus the paper's, NaN where one is missing."""
        return math.nan if self.paper is None else self.mean() - self.paper


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
            accuracy = entry.cell.directory.summary().accuracy
            folders = copies[entry.block.dataset].folders
            by_seed[entry.cell.spec.seed] = {
                m: _renamed(getattr(accuracy, m).domains, folders) for m in MOMENTS
            }
    return by_seed


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


def claims(scores: Sequence[Score]) -> list[str]:
    """Check the paper's claims: a sentence for each whose runs are all finished."""
    sentences: list[str] = []
    for name in dict.fromkeys(score.block.name for score in scores):
        averages = {
            (score.method, score.source): score
            for score in scores
            if (score.block.name, score.target) == (name, AVERAGE) and score.source != ALL
        }
        sentences += [f"{name}: {text}" for text in (*_orders(averages), *_distances(averages))]
    return sentences


def _orders(averages: Mapping[tuple[str, str], Score]) -> Iterator[str]:
    for worse, better, claim in _ORDER:
        gaps = [
            score.mean() - averages[worse, source].mean()
            for (method, source), score in averages.items()
            if method == better and (worse, source) in averages
        ]
        if gaps and all(map(math.isfinite, gaps)):
            held = sum(gap > 0 for gap in gaps)
            mean = math.fsum(gaps) / len(gaps)
            yield f"{claim} on {held} of {len(gaps)} sources, by {mean:+.2f} points on average."


def _distances(averages: Mapping[tuple[str, str], Score]) -> Iterator[str]:
    differences = [score.difference for score in averages.values() if score.paper is not None]
    if differences and all(map(math.isfinite, differences)):
        near = sum(abs(value) <= _WITHIN for value in differences)
        yield f"{near} of {len(differences)} averages are within {_WITHIN:g} points of the paper's."
