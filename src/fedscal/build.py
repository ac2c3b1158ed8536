"""From a spec to the objects that a run is made of; below this file nobody sees a spec."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedscal.client import ClientData, Training
from fedscal.data.benchmark import Benchmark
from fedscal.data.cache import images
from fedscal.data.labels import labels
from fedscal.data.partition import shards
from fedscal.data.registry import benchmark
from fedscal.drivers.site import Site
from fedscal.errors import TooFewClients
from fedscal.federation import Schedule
from fedscal.methods import build_objective
from fedscal.models.network import Network
from fedscal.models.registry import build_network
from fedscal.rng import stream
from fedscal.spec import RunSpec
from fedscal.types import ClientId


@dataclass(frozen=True)
class Layout:
    """Which client holds which rows of which domain; clients without an image are left out by name."""

    rows: dict[ClientId, tuple[str, Tensor]]
    empty: list[ClientId]

    @property
    def clients(self) -> list[ClientId]:
        """The clients that take part, sorted."""
        return sorted(self.rows)

    def domain(self, client: ClientId) -> str:
        """Return the domain of a client."""
        return self.rows[client][0]


def build_layout(spec: RunSpec) -> Layout:
    """Cut every target domain into clients; a function of the seed alone."""
    data = benchmark(spec.benchmark)
    rows: dict[ClientId, tuple[str, Tensor]] = {}
    empty = []
    for domain in data.domains:
        if domain == spec.source:
            continue
        parts = shards(
            len(images(data, domain)), spec.clients_per_domain, stream(spec.seed, "partition", domain)
        )
        digits = len(str(len(parts) - 1))
        for number, part in enumerate(parts):
            client = f"{domain}-{number:0{digits}}"
            if len(part):
                rows[client] = (domain, part)
            else:
                empty.append(client)
    if not rows:
        raise TooFewClients(f"no client of {spec.benchmark} has an image")
    return Layout(rows, empty)


def build_site(spec: RunSpec) -> Site:
    """Build the client side: every client's images, and apart from them the labels for evaluation."""
    data = benchmark(spec.benchmark)
    layout = build_layout(spec)
    pictures = {domain: images(data, domain) for domain in data.domains if domain != spec.source}
    truth = {domain: labels(data, domain) for domain in pictures}
    return Site(
        data={c: ClientData(pictures[d][rows], data.views) for c, (d, rows) in layout.rows.items()},
        labels={c: truth[d][rows] for c, (d, rows) in layout.rows.items()},
        network=network_for(spec, data),
        objective=build_objective(spec.method, spec.adaptation, spec.hyper),
        training=build_training(spec),
        seed=spec.seed,
    )


def network_for(spec: RunSpec, data: Benchmark, seed: int = 0) -> Network:
    """Build the run's network with the weights that the seed gives."""
    return build_network(spec.model, data.shape, len(data.classes), seed)


def build_training(spec: RunSpec) -> Training:
    """Return the clients' optimiser settings."""
    joint = {"auto": None, "joint": True, "separate": False}[spec.view_passes]
    return Training(epochs=spec.local_epochs, batch_size=spec.batch_size, joint=joint)


def build_schedule(spec: RunSpec) -> Schedule:
    """Return the rounds' schedule."""
    return Schedule(spec.rounds, spec.participation, spec.lr)
