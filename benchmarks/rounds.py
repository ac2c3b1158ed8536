"""What a round of every method costs: passes, seconds, and bytes a client.

Run with ``make bench``. Passes are counted where they are made, by a hook on the network. The limit is
nothing but those passes on tensors that are ready: no views, no loss terms, no optimiser, no server. Round
and limit alternate, on the same machine, threads and images, and the median ratio is printed, so that a
busy machine slows both. The round measured is the second: FedWCA has its clusters then, FedMOON its memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from fedscal.core.features import class_gaussians
from fedscal.core.rng import compute_threads
from fedscal.core.types import ClientId, Memory
from fedscal.core.weights import snapshot
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.metrics import bytes_up
from fedscal.experiment.spec import RunSpec
from fedscal.methods import METHODS
from fedscal.models.network import Network, predict
from fedscal.runtime.local import LocalDriver
from fedscal.runtime.service import ClientService
from fedscal.server.rounds import Round, Schedule, federate
from fedscal.server.rule import Briefing, ServerRule, ServerState

_REPEATS = 3
_TARGET = 1.25
_PAPER = {"fedloa": 1.0, "fedprox": 1.01, "fedwca": 1.04, "ladd": 0.73, "fedscal": 1.08}
"""Seconds of a round relative to FedLoA's in the paper's supplement."""


@dataclass(frozen=True)
class _SameMemory:
    """Every client took part before, with the model that it gets now."""

    memory: Memory

    def get(self, client: ClientId, before: int) -> Memory:
        return self.memory

    def put(self, client: ClientId, round_: int, memory: Memory) -> None:
        pass


@dataclass(frozen=True)
class Passes:
    """How often every image of a client goes through the network in a round."""

    forward: int
    forward_backward: int


@dataclass(frozen=True)
class Cost:
    """What was measured of one method: seconds of real rounds and of the limit, alternating."""

    passes: Passes
    real: list[float]
    bare: list[float]
    done: Round

    def row(self, name: str, base: Cost) -> list[str]:
        """Return the method's line of the table, beside FedLoA's."""
        overhead = median(real / bare for real, bare in zip(self.real, self.bare, strict=True))
        ratios = [median(self.bare) / median(base.bare), median(self.real) / median(base.real)]
        bytes_ = [fmean(self.done.bytes_down.values()), fmean(map(bytes_up, self.done.replies))]
        return [
            METHODS[name].title,
            f"{self.passes.forward} n",
            f"{self.passes.forward_backward} n",
            *(f"{value:.2f}" for value in (median(self.real), overhead, *ratios)),
            f"{_PAPER[name]:.2f}" if name in _PAPER else "",
            *(f"{value / 1e6:.2f}" for value in bytes_),
        ]


@dataclass(frozen=True)
class Bench:
    """A federation at the start of its second round, to be played again and again."""

    site: ClientService
    rule: ServerRule
    schedule: Schedule
    driver: LocalDriver
    state: ServerState
    clients: list[ClientId]

    @classmethod
    def of(cls, name: str) -> Bench:
        """Set up a method on digits and play its first round."""
        spec = RunSpec.make(method=name, source="optdigits", rounds=2, workers=1)
        parts = Experiment.build(spec)
        parts = parts.with_clients(parts.clients_of_data())
        site, layout, rule = parts.service(parts.layout), parts.layout, parts.rule
        schedule, model = parts.schedule, snapshot(site.network.state_dict())
        driver = LocalDriver(layout.clients, [site], _SameMemory({"previous": model}))
        gaussians = class_gaussians(torch.randn(100, 256), torch.arange(100) % 10, 10)
        profiles = driver.profile() if site.describe else {}
        briefing = Briefing(model, site.network.first_layer, spec.rounds, gaussians, profiles)
        first = next(federate(rule, driver, rule.init(briefing), schedule, spec.seed))
        clients = schedule.sample(layout.clients, spec.seed, 2)
        return cls(site, rule, schedule, driver, first.state, clients)

    def second_round(self) -> Round:
        """Play the second round as a run makes it, evaluation aside."""
        (done,) = federate(self.rule, self.driver, self.state, self.schedule, seed=0, after=1)
        assert len(done.replies) == len(done.participants), done.failures
        return done

    def passes(self) -> Passes:
        """Count the passes of a round in units of the participants' images."""
        images = sum(len(self.site.data[client].images) for client in self.clients)
        with _counted(self.site.network) as seen:
            self.second_round()
        return Passes(round(seen[False] / images), round(seen[True] / images))

    def bare(self, count: Passes) -> float:
        """Return the seconds of nothing but the passes, for the same clients and batch sizes."""
        views = {client: self.site.data[client] for client in self.clients}
        ready = [
            torch.cat([data.views.evaluate(batch) for batch in data.images.split(256)])
            for data in views.values()
        ]
        started = time.perf_counter()
        for images in ready:
            for _ in range(count.forward):
                predict(self.site.network, images, lambda batch: batch)
            self.site.network.train()
            for _ in range(count.forward_backward):
                _train_pass(self.site.network, images, self.site.training.batch_size)
        return time.perf_counter() - started


@contextmanager
def _counted(network: Network) -> Iterator[Counter[bool]]:
    """Count the images that go through the network and its copies, apart those with a gradient."""
    seen: Counter[bool] = Counter()

    def count(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen[torch.is_grad_enabled()] += len(inputs[0])

    hook = network.register_forward_pre_hook(count)
    try:
        yield seen
    finally:
        hook.remove()


def _train_pass(network: Network, images: Tensor, size: int) -> None:
    for batch in torch.split(images, size):
        network(batch).logits.sum().backward()
        network.zero_grad(set_to_none=True)


def measure(name: str) -> Cost:
    """Return what a round of a method costs."""
    bench = Bench.of(name)
    count = bench.passes()
    real, bare = [], []
    for _ in range(_REPEATS):
        done = bench.second_round()
        real.append(done.seconds)
        bare.append(bench.bare(count))
    return Cost(count, real, bare, done)


def main() -> None:
    """Measure every method and print the ratios."""
    columns = ("round s", "round/limit", "limit/FedLoA's", "round/FedLoA's", "paper", "MB down", "MB up")
    table = Table("method", "forward", "forward+backward", *columns)
    trained = [name for name, row in METHODS.items() if row.rule.trains and name != "loa"]
    with compute_threads(1):
        measure("fedloa")  # warm up
        results = {name: measure(name) for name in track(trained, "measuring")}
    for name, cost in results.items():
        table.add_row(*cost.row(name, results["fedloa"]))
    console = Console(width=140)
    console.print(table)
    console.print("n: a client's images. MB: of one client in one round.")
    console.print(f"Goal: FedLoA and FedSCAl at most {_TARGET} times the limit.")


if __name__ == "__main__":
    main()
