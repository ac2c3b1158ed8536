"""Seconds of a real round against the bare forward and backward passes that it needs (the limit).

Run with ``make bench``. Round and limit alternate, on the same machine, threads and images, and the
median ratio is printed, so that a busy machine slows both. The limit makes exactly the passes that the
method's objective needs, on tensors that are ready: no views, no loss terms, no optimiser, no server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from fedscal.build import build_layout, build_schedule, build_site
from fedscal.drivers.in_process import InProcess
from fedscal.drivers.site import Site
from fedscal.federation import federate
from fedscal.methods import METHODS, build_rule
from fedscal.models.network import Network, predict
from fedscal.objective.term import Need
from fedscal.rng import compute_threads
from fedscal.server.rule import Briefing
from fedscal.spec import RunSpec
from fedscal.types import ClientId, Memory
from fedscal.weights import snapshot

_REPEATS = 3
_NAMES = ("fedloa", "fedprox", "fedmoon", "fedscal")
_TARGET = 1.25


@dataclass(frozen=True)
class _SameMemory:
    """Every client took part before, with the model that it gets now."""

    memory: Memory

    def get(self, client: ClientId) -> Memory:
        return self.memory

    def put(self, client: ClientId, round_: int, memory: Memory) -> None:
        pass


@dataclass(frozen=True)
class Passes:
    """How often every image of a client goes through the network in a round."""

    forward: int
    forward_backward: int


def passes(site: Site) -> Passes:
    """Count what the objective asks for: a sweep and a weak view each epoch, and its needs."""
    epochs, needs = site.training.epochs, site.objective.needs
    every_epoch = 1 + (Need.SERVER in needs) + (Need.PREVIOUS in needs)
    return Passes(epochs * every_epoch + (Need.SERVER_ONCE in needs), epochs * (1 + (Need.STRONG in needs)))


def real_round(spec: RunSpec, site: Site) -> float:
    """Return the seconds of one round as a run makes it, evaluation aside."""
    rule = build_rule(spec.method, spec.hyper)
    model = snapshot(site.network.state_dict())
    state = rule.init(Briefing(model, site.network.first_layer))
    driver = InProcess(build_layout(spec).clients, [site], _SameMemory({"previous": model}))
    (done,) = federate(rule, driver, state, build_schedule(spec, build_layout(spec)), spec.seed)
    assert len(done.replies) == len(done.participants), done.failures
    return done.seconds


def bare_passes(site: Site, clients: list[ClientId], count: Passes) -> float:
    """Return the seconds of nothing but the passes, for the same clients and batch sizes."""
    ready = {client: site.data[client].views.evaluate(site.data[client].images) for client in clients}
    started = time.perf_counter()
    for images in ready.values():
        for _ in range(count.forward):
            predict(site.network, images, lambda batch: batch)
        site.network.train()
        for _ in range(count.forward_backward):
            _train_pass(site.network, images, site.training.batch_size)
    return time.perf_counter() - started


def _train_pass(network: Network, images: Tensor, size: int) -> None:
    for batch in torch.split(images, size):
        network(batch).logits.sum().backward()
        network.zero_grad(set_to_none=True)


def measure(name: str) -> tuple[list[float], list[float], Passes]:
    """Return the seconds of real rounds and of the limit, alternating."""
    spec = RunSpec.make(method=name, source="optdigits", rounds=1, workers=1)
    site = build_site(spec)
    site.network.freeze_head()
    clients = build_schedule(spec, build_layout(spec)).sample(build_layout(spec).clients, spec.seed, 1)
    count = passes(site)
    real, bare = [], []
    for _ in range(_REPEATS):
        real.append(real_round(spec, site))
        bare.append(bare_passes(site, clients, count))
    return real, bare, count


def main() -> None:
    """Measure every method and print the ratios."""
    seconds = ("limit s", "round s", "round/limit", "limit/FedLoA's", "round/FedLoA's")
    table = Table("method", "forward", "forward+backward", *seconds)
    with compute_threads(1):
        measure("fedloa")  # warm up
        results = {name: measure(name) for name in track(_NAMES, "measuring")}
    base_real, base_bare, _ = results["fedloa"]
    for name, (real, bare, count) in results.items():
        overhead = median(r / b for r, b in zip(real, bare, strict=True))
        against = [median(bare) / median(base_bare), median(real) / median(base_real)]
        numbers = [f"{value:.2f}" for value in (median(bare), median(real), overhead, *against)]
        table.add_row(METHODS[name].title, f"{count.forward} n", f"{count.forward_backward} n", *numbers)
    console = Console()
    console.print(table)
    console.print(f"n: a client's images. Goal: FedLoA and FedSCAl at most {_TARGET} times the limit.")


if __name__ == "__main__":
    main()
