"""The paper's cost table: what a round takes, from runs that are made for nothing else.

Only rounds after the first count: the first has no clusters yet, and warms the machine up. Methods that are
compared had the same seed, so the same clients took part, one run soon after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from fedscal.compare.row_labels import marked
from fedscal.core.table import Entered, Table
from fedscal.core.text import UNKNOWN, decimals
from fedscal.experiment.records import RoundRecord
from fedscal.methods import caveat
from fedscal.paper.estimate import Passes, passes
from fedscal.paper.printed import seconds as printed_seconds
from fedscal.paper.tables import COST, Entry

CAPTION = "From runs that were made for this table alone, one after the other."
_CLOCKS = (
    "Seconds of a round, evaluation aside: the median over the seeds, and the lowest and highest. Ratios are "
    "taken between runs of one seed; only they carry over to another machine."
)
_PASSES = "Passes: how often every image of a participant goes through the network in a round."
_MEGA = 1e6
BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Cost:
    """What a round of a method costs.

    Attributes:
        method: the row.
        paper: the seconds that the paper prints.
        paper_ratio: the same, divided by FedLoA's.
        seconds: ours, by seed.
        ratios: ours divided by FedLoA's of the same seed, for the seeds that both have.
        passes: how often an image of a participant goes through the network; None without a run.
        bytes_down: bytes that a participant is sent.
        bytes_up: bytes that it sends.
    """

    method: str
    paper: float
    paper_ratio: float
    seconds: BySeed
    ratios: BySeed
    passes: Passes | None = None
    bytes_down: float = math.nan
    bytes_up: float = math.nan

    @property
    def label(self) -> str:
        """The row's name, marked if it is a reconstruction."""
        return marked(self.method, COST.method(self.method))

    @property
    def difference(self) -> float:
        """Our ratio minus the paper's, NaN without ours."""
        return _median(self.ratios) - self.paper_ratio

    def record(self, difference: str) -> dict[str, Entered]:
        """Return it as a flat record; unknown values are None."""
        needed = self.passes or Passes(0, 0)
        values = {
            "paper_seconds": self.paper,
            **_named("seconds", self.seconds),
            "paper_ratio": self.paper_ratio,
            **_named("ratio", self.ratios),
            difference.replace(" ", "_"): self.difference,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
        }
        known = {key: round(value, 4) if math.isfinite(value) else None for key, value in values.items()}
        counts = {"forward": needed.forward or None, "forward_backward": needed.forward_backward or None}
        of = {"method": self.method, "caveat": caveat(COST.method(self.method))}
        return {"table": COST.name, **of, "seeds": len(self.seconds), **known, **counts}


def costs(entries: Sequence[Entry]) -> list[Cost]:
    """Return the rows of the table from its finished runs."""
    printed, base = printed_seconds(), COST.variants[0].title
    runs = {
        variant.title: [e for e in entries if e.variant == variant and e.cell.directory.finished]
        for variant in COST.variants
    }
    clocks = {method: _clocks(mine) for method, mine in runs.items()}
    return [
        Cost(
            method,
            printed[method],
            printed[method] / printed[base],
            clocks[method],
            ratios(clocks[method], clocks[base]),
            *_needs(mine),
        )
        for method, mine in runs.items()
    ]


def ratios(ours: BySeed, base: BySeed) -> dict[int, float]:
    """Return how many times the base's seconds ours are, seed by seed.

    >>> ratios({0: 3.0, 1: 5.0, 2: 1.0}, {0: 2.0, 1: 4.0})
    {0: 1.5, 1: 1.25}
    """
    return {seed: value / base[seed] for seed, value in ours.items() if seed in base}


def tables(found: Sequence[Cost], difference: str) -> list[Table]:
    """Return the seconds and their ratios, and what they come from."""
    heads = ["paper", "ours", "lowest to highest"]
    clocked = ["method", *(f"seconds, {head}" for head in heads), *(f"ratio, {head}" for head in heads)]
    title = f"{COST.name}, {COST.adaptation}, source {COST.sources[0]}"
    needs = ["method", "forward passes", "with backward", "MB to a client", "MB from it"]
    lines = [_clock_line(cost) for cost in found]
    return [
        Table(f"{title}: a round", [*clocked, f"ratio, {difference}"], lines, [_CLOCKS]),
        Table(f"{title}: what a round needs", needs, [_need_line(cost) for cost in found], [_PASSES]),
    ]


def _clock_line(cost: Cost) -> list[str]:
    pairs = ((cost.paper, cost.seconds), (cost.paper_ratio, cost.ratios))
    parts = [[f"{paper:.2f}", _middle(ours), _range(ours)] for paper, ours in pairs]
    gap = f"{cost.difference:+.2f}" if cost.ratios else ""
    return [cost.label, *parts[0], *parts[1], gap]


def _need_line(cost: Cost) -> list[str]:
    counts = [str(cost.passes.forward), str(cost.passes.forward_backward)] if cost.passes else [UNKNOWN] * 2
    return [cost.label, *counts, *(decimals(b / _MEGA) for b in (cost.bytes_down, cost.bytes_up))]


def _middle(values: BySeed) -> str:
    return f"{median(values.values()):.2f}" if values else ""


def _range(values: BySeed) -> str:
    return f"{min(values.values()):.2f} to {max(values.values()):.2f}" if len(values) > 1 else ""


def _median(values: BySeed) -> float:
    return median(values.values()) if values else math.nan


def _named(name: str, values: BySeed) -> dict[str, float]:
    ends = (min(values.values()), max(values.values())) if values else (math.nan, math.nan)
    return {name: _median(values), f"{name}_lowest": ends[0], f"{name}_highest": ends[1]}


def _clocks(entries: Sequence[Entry]) -> dict[int, float]:
    """Return the mean seconds of the counted rounds by seed; a run whose record is lost has none."""
    found = {entry.cell.spec.seed: [r.seconds.adapt for r in _counted(entry)] for entry in entries}
    return {seed: fmean(values) for seed, values in found.items() if values}


def _counted(entry: Entry) -> list[RoundRecord]:
    return [record for record in entry.cell.directory.rounds() if record.round > 1]


def _needs(entries: Sequence[Entry]) -> tuple[Passes | None, float, float]:
    """Return passes and bytes of a participant, of the first run: they hardly differ between seeds."""
    for entry in entries[:1]:
        records = _counted(entry)
        targets = {client.domain for record in records for client in record.clients.values()}
        shares = [(r.bytes, len(r.participants)) for r in records if r.bytes and r.participants]
        down, up = (_mean(getattr(sent, way) / n for sent, n in shares) for way in ("down", "up"))
        return passes(entry.cell.spec, clusters=len(targets)), down, up
    return None, math.nan, math.nan


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return fmean(known) if known else math.nan
