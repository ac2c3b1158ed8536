"""From a spec to the objects that a run is made of; below this file nobody sees a spec."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from torch import Tensor

from fedscal.client.term import Need
from fedscal.client.training import ClientData, Training, batch_count
from fedscal.core.errors import DataRefused, TooFewClients, UsageError, nearest, some
from fedscal.core.rng import stream
from fedscal.core.types import ClientId
from fedscal.data.benchmark import Benchmark
from fedscal.data.cache import images
from fedscal.data.labels import labels
from fedscal.data.partition import shards
from fedscal.data.pixels import take
from fedscal.data.registry import benchmark
from fedscal.data.views import AugmentedViews, views_of
from fedscal.experiment.spec import RunSpec
from fedscal.methods import build_objective, build_rule, method
from fedscal.models.custom import check_permission
from fedscal.models.device import find_device, put
from fedscal.models.network import Network
from fedscal.models.registry import build_network, normalisation
from fedscal.models.store import ModelCard, read_card
from fedscal.runtime.service import Site
from fedscal.server.rounds import Schedule

_AUTHORS_HALF_PERIOD = 500


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

    def of(self, client: ClientId) -> Layout:
        """Return the part of one client."""
        if client not in self.rows:
            raise UsageError(f"there is no client '{client}'{nearest(client, self.rows)}")
        return Layout({client: self.rows[client]}, [])


def data_for(spec: RunSpec) -> Benchmark:
    """Return the run's data set, with the views that its network needs."""
    skip = spec.on_bad == "skip"
    data = benchmark(spec.benchmark, skip, spec.image_size, spec.classes, spec.trained_on)
    if spec.source_model:
        return _as_known(data, read_card(spec.source_model))
    if data.folder:
        data.folder.require_same_classes()
    known = normalisation(spec.model)
    if known is None or not isinstance(data.views, AugmentedViews):
        return data
    return replace(data, views=replace(data.views, mean=known[0], std=known[1]))


def _as_known(data: Benchmark, card: ModelCard) -> Benchmark:
    """Return a data set as a given model knows it: its order of classes, its views."""
    classes = card.classes
    strange = sorted(set(data.classes) - set(classes))
    if strange or (data.folder is None and data.classes != classes):
        raise DataRefused(
            f"{data.name} and the model have different classes; the model does not know "
            f"{', '.join(strange[:5]) or 'their order'}. It knows {some(classes, 10)}."
        )
    folder = data.folder.ordered(classes) if data.folder else None
    # Of images that are at the sites, only the model knows the shape.
    shape = data.shape if any(data.shape) else card.shape
    views = views_of(card.views, card.shape[0]) or data.views
    return replace(data, classes=classes, views=views, folder=folder, shape=shape)


def build_layout(spec: RunSpec) -> Layout:
    """Cut every target domain into clients; a function of the seed alone."""
    data = data_for(spec)
    rows: dict[ClientId, tuple[str, Tensor]] = {}
    empty = list(data.folder.empty) if data.folder else []
    for domain in data.domains:
        if domain == spec.source:
            continue
        parts = shards(
            len(images(data, domain)), spec.clients_per_domain, stream(spec.seed, "partition", domain)
        )
        digits = len(str(len(parts) - 1))
        for number, part in enumerate(parts):
            client = domain if spec.clients else f"{domain}-{number:0{digits}}"
            if len(part):
                rows[client] = (domain, part)
            else:
                empty.append(client)
    if not rows:
        raise TooFewClients(f"no client of {spec.benchmark} has an image")
    return Layout(rows, empty)


def check_feasible(spec: RunSpec, layout: Layout) -> None:
    """Refuse, before anything is trained, a method that has no meaning with these clients."""
    rule, clients = build_rule(spec.method, spec.hyper), layout.clients
    if len(clients) < rule.least_clients:
        raise TooFewClients(
            f"{spec.method} needs at least {rule.least_clients} clients, and there are {len(clients)}; "
            "raise clients_per_domain, or choose another method."
        )
    schedule = build_schedule(spec, layout)
    sampled = len(schedule.sample(clients, spec.seed, 1))
    if sampled < rule.least_replies():
        raise UsageError(
            f"aggregation={spec.hyper.get('aggregation')} needs at least {rule.least_replies()} clients in a "
            f"round, and {sampled} take part; raise participation, or lower attackers."
        )
    needs = build_objective(spec.method, spec.adaptation, spec.hyper).needs
    if Need.PREVIOUS not in needs:
        return
    turns = Counter(c for r in range(1, spec.rounds + 1) for c in schedule.sample(clients, spec.seed, r))
    if max(turns.values()) < 2:
        raise UsageError(
            f"{spec.method} contrasts a client's model with its last one, and with rounds={spec.rounds} and "
            f"participation={spec.participation:g} no client takes part twice; raise one of them."
        )


def build_site(spec: RunSpec, only: ClientId = "") -> Site:
    """Build the client side: every client's images, and apart from them the labels for evaluation.

    ``only`` names the one client of a machine that holds no other.
    """
    data = data_for(spec)
    layout = build_layout(spec).of(only) if only else build_layout(spec)
    pictures = {domain: images(data, domain) for domain, _ in layout.rows.values()}
    truth = {domain: labels(data, domain) for domain in pictures}
    return Site(
        data={c: ClientData(take(pictures[d], rows), data.views) for c, (d, rows) in layout.rows.items()},
        labels={c: known[rows] for c, (d, rows) in layout.rows.items() if (known := truth[d]) is not None},
        network=network_for(spec, data),
        objective=build_objective(spec.method, spec.adaptation, spec.hyper),
        training=build_training(spec),
        seed=spec.seed,
        describe=method(spec.method).profile,
    )


def network_for(spec: RunSpec, data: Benchmark, seed: int = 0) -> Network:
    """Build the run's network with the weights that the seed gives, where it shall compute."""
    network = build_network(spec.model, data.shape, len(data.classes), seed)
    if spec.micro_batch and network.norms:
        raise UsageError(
            f"micro_batch={spec.micro_batch}: the statistics of BatchNorm in {spec.model} are those of a "
            "whole batch; leave it 0, or lower batch_size."
        )
    return put(network, spec.device, spec.precision)


def check_network(spec: RunSpec) -> None:
    """Refuse a network that cannot be built here, before anything is decoded, trained or written."""
    check_permission(spec.model)
    find_device(spec.device)
    network_for(spec, data_for(spec))


def build_training(spec: RunSpec) -> Training:
    """Return the clients' optimiser settings."""
    joint = {"auto": None, "joint": True, "separate": False}[spec.view_passes]
    return Training(
        spec.local_epochs,
        spec.batch_size,
        joint=joint,
        label_view=spec.label_view,
        micro_batch=spec.micro_batch,
    )


def build_schedule(spec: RunSpec, layout: Layout) -> Schedule:
    """Return the rounds' schedule."""
    cosine = Schedule(spec.rounds, spec.participation, spec.lr)
    if spec.lr_schedule == "cosine":
        return cosine
    return replace(cosine, rates=oscillating_rates(spec, layout, cosine))


def oscillating_rates(spec: RunSpec, layout: Layout, schedule: Schedule) -> list[float]:
    """Return the rates of the authors' code: a cosine of half-period 500 over all clients' mini-batches.

    It is stepped by every mini-batch of every client and read at the start of a round.
    """
    steps, rates = 0, []
    for round_ in range(1, spec.rounds + 1):
        rates.append(spec.lr * 0.5 * (1 + math.cos(math.pi * steps / _AUTHORS_HALF_PERIOD)))
        sizes = [len(layout.rows[c][1]) for c in schedule.sample(layout.clients, spec.seed, round_)]
        steps += spec.local_epochs * sum(batch_count(size, spec.batch_size) for size in sizes)
    return rates
