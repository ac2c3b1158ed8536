"""Paper, ours and their difference for every place of a printed table, whether it was run or not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from fedscal.paper.datasets import Copy
from fedscal.paper.printed import ALL, AVERAGE, accuracies, recomputed, seconds
from fedscal.paper.tables import COST, Block, Entry, Variant

MOMENTS = ("last", "selected", "best")
SECONDS, RATIO = "seconds a round", "times FedLoA's"
Found = Mapping[str, Mapping[str, float]]
"""What one run found: by moment, and by target under the paper's names."""
BySeed = Mapping[int, Found]


@dataclass(frozen=True)
class Score:
    """One place of a table.

    Attributes:
        block: the table.
        method: the row.
        source: what the source model was trained on; ``all``: the mean over the sources.
        target: the domain; ``average``: the mean over the targets.
        printed: what the paper prints here, if it does.
        paper: the same, but averages recomputed from their parts.
        ours: our values, one a seed, by moment: last round, selected round, best round (an oracle).
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
    """Return every place of a block, in the order of rows, sources and targets."""
    mine = [entry for entry in entries if entry.block == block and entry.cell.directory.finished]
    if block == COST:
        return _costs(mine)
    found: list[Score] = []
    for variant in block.variants:
        runs = {source: _by_seed(mine, variant, source, copies) for source in block.sources}
        for source in (*block.sources, *([ALL] if len(block.sources) > 1 else [])):
            by_seed = _over_sources(runs) if source == ALL else runs[source]
            for target in _targets(block, source):
                found.append(_score(block, variant.title, source, target, by_seed))
    return found


def _targets(block: Block, source: str) -> list[str]:
    if source == ALL or block.averages_only:
        return [AVERAGE]
    return [*(name for name in block.domains if name != source), AVERAGE]


def _score(block: Block, method: str, source: str, target: str, by_seed: BySeed) -> Score:
    printed = accuracies(block.name).get((method, source, target))
    paper = recomputed(block.name, method, source) if target == AVERAGE else printed
    ours = {moment: [found[moment][target] for found in by_seed.values()] for moment in MOMENTS}
    return Score(block, method, source, target, printed, paper, ours)


def _by_seed(
    entries: Iterable[Entry], variant: Variant, source: str, copies: Mapping[str, Copy]
) -> dict[int, Found]:
    found: dict[int, Found] = {}
    for entry in entries:
        if (entry.variant, entry.source) == (variant, source):
            accuracy = entry.cell.directory.summary().accuracy
            folders = copies[entry.block.dataset].folders
            found[entry.cell.spec.seed] = {
                m: _renamed(getattr(accuracy, m).domains, folders) for m in MOMENTS
            }
    return found


def _renamed(accuracy: Mapping[str, float], folders: Mapping[str, str]) -> dict[str, float]:
    """Return accuracies under the paper's names of the domains, their average over these alone."""
    targets = {name: accuracy[folder] for name, folder in folders.items() if folder in accuracy}
    return {**targets, AVERAGE: fmean(targets.values())}


def _over_sources(runs: Mapping[str, BySeed]) -> dict[int, Found]:
    """Return the mean of the sources' averages, for the seeds that every source has."""
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in runs.values())))
    return {
        seed: {m: {AVERAGE: fmean(found[seed][m][AVERAGE] for found in runs.values())} for m in MOMENTS}
        for seed in seeds
    }


def _costs(entries: Sequence[Entry]) -> list[Score]:
    """Return seconds of a round, and the ratio to FedLoA's, which alone carries over to other machines."""
    (source,) = COST.sources
    printed, base = seconds(), COST.variants[0].title
    spent = {
        variant.title: [_round_seconds(entry) for entry in entries if entry.variant == variant]
        for variant in COST.variants
    }
    usual = fmean(spent[base]) if spent[base] else math.nan
    found = []
    for method, ours in spent.items():
        paper, ratio = printed[method], printed[method] / printed[base]
        ratios = [value / usual for value in ours] if math.isfinite(usual) else []
        found.append(Score(COST, method, source, SECONDS, paper, paper, {"last": ours}))
        found.append(Score(COST, method, source, RATIO, None, ratio, {"last": ratios}))
    return found


def _round_seconds(entry: Entry) -> float:
    summary = entry.cell.directory.summary()
    return summary.seconds.adapt / summary.rounds
