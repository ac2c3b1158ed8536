"""How good the choice without labels was, over finished runs with labels.

    python -m benchmarks.delivery DIR...        # folders of runs, as `fedscal compare --out` leaves

Every run that chose by agreement is compared with what it could have delivered: the source model as it came
(from a run of source-only with shared statistics on the same clients, if the folders hold one), the source
model with the sites' statistics, and the model of its last round. Accuracies are averages over domains in %.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from fedscal.experiment.records import Delivery, RoundRecord, by_domain
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec

_SAME = (
    "benchmark",
    "source",
    "seed",
    "class_skew",
    "clients_per_domain",
    "model",
    "trunk",
    "pretrain_views",
)


@dataclass(frozen=True)
class Choice:
    """A run: what it delivered, and what it could have.

    Attributes:
        came: the source model as it came; None if no run tells.
        rounds: the averages of round 0, the source model with the sites' statistics, to the last.
    """

    name: str
    verdict: str
    delivered: float
    came: float | None
    rounds: Sequence[float]

    @property
    def start(self) -> float:
        """The source model as it came, or else with the sites' statistics."""
        return self.rounds[0] if self.came is None else self.came

    @property
    def regret(self) -> float:
        """What the best of the three candidates has more."""
        return max(self.start, self.rounds[0], self.rounds[-1]) - self.delivered


def runs(folders: Sequence[Path]) -> Iterator[RunDirectory]:
    """Yield the finished runs in folders."""
    for folder in folders:
        for path in sorted(folder.glob("*/summary.json")):
            yield RunDirectory(path.parent)


def setting(spec: RunSpec) -> tuple[object, ...]:
    """Return what two runs on the same clients with the same source model have in common."""
    return tuple(getattr(spec, name) for name in _SAME)


def delivered(records: Sequence[RoundRecord], delivery: Delivery) -> float:
    """Return the average accuracy of the models that the sites are given."""
    domains = records[0].domains
    found = {c: records[delivery.round_at(c)].clients[c].accuracy for c in domains}
    return by_domain(found, domains).average


def choices(folders: Sequence[Path]) -> list[Choice]:
    """Return the runs that chose by agreement."""
    came: dict[tuple[object, ...], float] = {}
    chosen: list[tuple[RunDirectory, Delivery]] = []
    for run in runs(folders):
        spec, summary = run.spec(), run.summary()
        if spec.method == "source-only" and spec.statistics == "shared":
            came[setting(spec)] = summary.accuracy.last.average
        if summary.delivery:
            chosen.append((run, summary.delivery))
    return [
        Choice(
            name=run.path.name,
            verdict=delivery.verdict,
            delivered=delivered(records := run.rounds(), delivery),
            came=came.get(setting(run.spec())),
            rounds=[record.accuracy.server.average for record in records],
        )
        for run, delivery in chosen
    ]


def main(folders: Sequence[Path]) -> None:
    """Print one line a run, then what they have in common."""
    found = choices(folders)
    print("| run | verdict | as it came | site statistics | last | best | delivered | regret |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for one in found:
        came = "" if one.came is None else f"{one.came:.1f}"
        numbers = (one.rounds[0], one.rounds[-1], max(one.rounds), one.delivered, one.regret)
        print(f"| {one.name} | {one.verdict} | {came} | " + " | ".join(f"{x:.1f}" for x in numbers) + " |")
    print(f"\n{summary(found)}")


def summary(found: Sequence[Choice]) -> str:
    """Return what the runs have in common."""
    regrets, gains = [one.regret for one in found], [one.delivered - one.start for one in found]
    missed = fmean(max(one.rounds) - one.delivered for one in found)
    better = [one for one in found if one.rounds[-1] > one.start]
    alarms = sum(one.verdict != "better" for one in better)
    verdicts = dict(Counter(one.verdict for one in found))
    return (
        f"{len(found)} runs: regret {fmean(regrets):.2f} on average, {max(regrets):.2f} at worst; "
        f"against the best round {missed:.2f} on average. Delivered against the source model: "
        f"{fmean(gains):+.2f} on average, {min(gains):+.2f} at worst. Verdicts: {verdicts}; "
        f"{alarms} of {len(better)} runs that gained were not called better."
    )


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
