"""One bad client of ten: what it does to the honest ones, under every aggregation.

    python -m benchmarks.attacks                       # digits from mnist, ten clients, all in every round
    python -m benchmarks.attacks rounds=12 seed=1      # other keys of a run

The bad client trains like the others and then answers with something else. A row is an aggregation, a column
an attack; a cell is the mean accuracy (%) of the nine honest clients in the last round, and its difference
from the run without attack and without defence.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from fedscal.core.layout import is_statistic
from fedscal.core.types import ClientId, Failure, Package, Reply, Weights
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.local import Local
from fedscal.experiment.run import adapt
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec, parse_assignments
from fedscal.runtime.local import LocalDriver

KEYS = {"participation": 1.0, "rounds": 4, "local_epochs": 2, "source": "mnist", "workers": 1}
DEFENCES: dict[str, dict[str, Any]] = {
    "uniform": {},
    "norm_limit=10": {"norm_limit": 10},
    "median": {"aggregation": "median"},
    "trimmed-mean": {"aggregation": "trimmed-mean"},
    "krum": {"aggregation": "krum"},
    "trimmed-mean, norm_limit=3": {"aggregation": "trimmed-mean", "norm_limit": 3},
}


Model = dict[str, torch.Tensor]


def _scaled(reply: Weights, sent: Weights, factor: float) -> Model:
    """Return the server's model plus ``factor`` times the step that was really taken; honest statistics."""

    def moved(name: str) -> torch.Tensor:
        return (sent[name] + factor * (reply[name] - sent[name])).to(reply[name].dtype)

    return _with(reply, lambda n: reply[n].is_floating_point() and not is_statistic(n), moved)


def _with(reply: Weights, chosen: Callable[[str], bool], change: Callable[[str], torch.Tensor]) -> Model:
    """Return an honest reply, but for the tensors of some names."""
    return {name: change(name) if chosen(name) else tensor for name, tensor in reply.items()}


def _with_variances(reply: Weights, factor: float, shift: float) -> Model:
    return _with(reply, lambda n: n.endswith("running_var"), lambda n: factor * reply[n] + shift)


def _far_means(reply: Weights, sent: Weights) -> Model:
    """Return an honest reply whose running means lie ten standard deviations off."""

    def moved(name: str) -> torch.Tensor:
        return reply[name] + 10 * reply[name.removesuffix("mean") + "var"].sqrt()

    return _with(reply, lambda n: n.endswith("running_mean"), moved)


ATTACKS: dict[str, Callable[[Weights, Weights], Model] | None] = {
    "none": None,
    "x1000": lambda reply, sent: _scaled(reply, sent, 1000.0),
    "sign flipped": lambda reply, sent: _scaled(reply, sent, -1.0),
    "sign flipped x10": lambda reply, sent: _scaled(reply, sent, -10.0),
    "variances -1e6": lambda reply, sent: _with_variances(reply, 0, -1e6),
    "variances x1e6": lambda reply, sent: _with_variances(reply, 1e6, 0),
    "means +10 sd": _far_means,
}


class Attacked(LocalDriver):
    """A driver whose first client answers with something else than it learned."""

    attack: Callable[[Weights, Weights], Model]

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterator[Reply | Failure]:
        """Yield the clients' answers, the bad one's changed."""
        for answer in super().exchange(packages):
            if isinstance(answer, Reply) and answer.client == self.clients[0]:
                sent = packages[answer.client].models["server"]
                answer = replace(answer, weights=self.attack(answer.weights, sent))
            yield answer


@dataclass(frozen=True)
class WithAttacker(Local):
    """The clients of this machine with a bad client in it."""

    attack: Callable[[Weights, Weights], Model]

    def driver(
        self, experiment: Experiment, directory: RunDirectory, answered: Callable[[ClientId], None]
    ) -> LocalDriver:
        """Return a driver with the bad client in it."""
        driver = super().driver(experiment, directory, answered)
        driver.__class__ = Attacked
        driver.attack = self.attack  # type: ignore[attr-defined]
        return driver


def honest(spec: RunSpec, attack: str, out: Path) -> float:
    """Run and return the honest clients' mean accuracy in the last round."""
    change = ATTACKS[attack]
    federation = Local() if change is None else WithAttacker(change)
    line = adapt(spec, out, federation=federation).rounds()[-1]
    first = min(line.clients)
    return fmean(row.accuracy for client, row in line.clients.items() if client != first)


def main() -> None:
    """Print the table."""
    keys: dict[str, Any] = {**KEYS, **parse_assignments(sys.argv[1:])}
    print("| aggregation | " + " | ".join(ATTACKS) + " |", flush=True)
    print("|---|" + "---:|" * len(ATTACKS), flush=True)
    plain: float | None = None
    with tempfile.TemporaryDirectory() as folder:
        for defence, more in DEFENCES.items():
            spec = RunSpec.make(**{**keys, **more})
            cells = []
            for attack in ATTACKS:
                value = honest(spec, attack, Path(folder) / f"{defence}-{attack}".replace(" ", "-"))
                plain = value if plain is None else plain
                cells.append(f"{value:.1f} ({value - plain:+.1f})")
            print(f"| {defence} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
