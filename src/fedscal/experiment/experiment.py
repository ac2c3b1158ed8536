"""A run as one value: everything that a spec decides, built and checked once.

``Experiment.build`` refuses what cannot run before anything is decoded, trained or written. Whoever executes
a part of the run (this process, a worker process, a site of a federation) builds its Experiment once and
takes parts of it; nothing below sees a spec.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedscal.client.style import style
from fedscal.client.term import Need, Objective
from fedscal.client.training import Training, batch_count
from fedscal.core import weights
from fedscal.core.errors import DataRefused, TooFewClients, UsageError, nearest, some
from fedscal.core.rng import compute_threads, stream, stream_seed
from fedscal.core.types import ClientId, Images, Progress, Source, Views
from fedscal.data import cache
from fedscal.data.benchmark import Benchmark
from fedscal.data.features import FeatureBank, FeatureViews
from fedscal.data.folders.benchmark import Folder
from fedscal.data.labels import known_labels, labels
from fedscal.data.pixels import shards, skewed_shards, take
from fedscal.data.registry import benchmark
from fedscal.data.views import AugmentedViews, views_of
from fedscal.experiment.client_images import ClientImages
from fedscal.experiment.judging import Judging
from fedscal.experiment.records import check_domains
from fedscal.experiment.spec import RunSpec
from fedscal.methods import Method, build_objective, build_rule, method
from fedscal.models.custom import check_permission
from fedscal.models.device import find_device, to_device
from fedscal.models.network import Foldable, Network
from fedscal.models.registry import build_network, normalisation
from fedscal.models.statistics import SiteStatistics
from fedscal.models.store import ModelCard, read_card
from fedscal.runtime.service import ClientService
from fedscal.server.authors import oscillating_rates
from fedscal.server.rounds import Schedule
from fedscal.server.rule import ServerRule


@dataclass(frozen=True)
class Layout:
    """Which client holds which rows of which domain; clients without an image are left out by name."""

    rows: Mapping[ClientId, tuple[str, Tensor]]
    empty: list[ClientId]

    @property
    def clients(self) -> list[ClientId]:
        """The clients that take part, sorted."""
        return sorted(self.rows)

    @property
    def domains(self) -> dict[ClientId, str]:
        """The domain of every client."""
        return {client: self.rows[client][0] for client in self.clients}

    def of(self, client: ClientId) -> Layout:
        """Return the part of one client."""
        if client not in self.rows:
            raise UsageError(f"there is no client '{client}'{nearest(client, self.rows)}")
        return Layout({client: self.rows[client]}, [])


@dataclass(frozen=True)
class Experiment:
    """The parts of a run.

    Attributes:
        spec: what the user asked for.
        execution: the spec as it is executed here: a resumed run may use other workers and threads.
        data: the data set, with the views that the network needs.
        network: the network with the initial weights of source training; one per process.
        method: the method's row.
        objective: the clients' loss.
        rule: the server's part.
        training: the clients' optimiser settings.
        bank: where features come from if the trunk is frozen; the network then expects those.
        layout: which client holds what; empty until the clients are known, see ``with_clients``.
    """

    spec: RunSpec
    execution: RunSpec
    data: Benchmark
    network: Network
    method: Method
    objective: Objective
    rule: ServerRule
    training: Training
    bank: FeatureBank | None = None
    layout: Layout = Layout({}, [])

    @classmethod
    def build(cls, spec: RunSpec, execution: RunSpec | None = None) -> Experiment:
        """Build every part that does not depend on who the clients are."""
        check_permission(spec.model)
        find_device(spec.device)
        data = load_data(spec)
        network = network_of(spec, data)
        return cls(
            spec=spec,
            execution=execution or spec,
            data=data,
            network=network,
            bank=feature_bank(spec, data, network) if spec.trunk == "frozen" else None,
            method=method(spec.method),
            objective=build_objective(spec.method, spec.adaptation, spec.hyper),
            rule=build_rule(spec.method, spec.hyper),
            training=training_of(spec),
        )

    def with_clients(self, layout: Layout) -> Experiment:
        """Return the experiment with its clients; refuse a method that has no meaning with them."""
        check_domains(layout.domains.values())
        complete = replace(self, layout=layout)
        complete._check_feasible()
        return complete

    @cached_property
    def schedule(self) -> Schedule:
        """Rounds, participation and learning rates."""
        spec = self.spec
        cosine = Schedule(spec.rounds, spec.participation, spec.lr, least=spec.least_participants)
        if spec.lr_schedule == "cosine":
            return cosine
        batches = {
            client: spec.local_epochs * batch_count(len(rows), spec.batch_size)
            for client, (_, rows) in self.layout.rows.items()
        }
        return replace(cosine, rates=oscillating_rates(cosine, self.layout.clients, spec.seed, batches))

    @property
    def judging(self) -> Judging:
        """Who judges the server's model in which rounds."""
        return Judging(self.spec.rounds, self.spec.judge_clients, self.spec.judge_every)

    @cached_property
    def card(self) -> ModelCard:
        """What a reader of a model must know to use it: network, input shape, ordered classes, views."""
        spec, data = self.spec, self.data
        return ModelCard(
            model=spec.model,
            shape=data.shape,
            classes=data.classes,
            benchmark=spec.benchmark,
            source=spec.source or read_card(spec.source_model).source or "",
            views=asdict(data.views) if isinstance(data.views, AugmentedViews) else None,
            plugins=spec.plugins,
            statistics_prior=spec.statistics_prior if spec.statistics == "site" else None,
            site_share=spec.site_share or None,
            trunk_sha256=self.bank.trunk_sha256 if self.bank else None,
            thaw=spec.thaw,
        )

    @property
    def views(self) -> Views:
        """How training and evaluation see the images, or the features that stand for them."""
        return FeatureViews(self.bank.count) if self.bank else self.data.views

    def images(self, domain: str, progress: Progress | None = None) -> Images:
        """Return a domain's images; of a frozen trunk the features, which take their time once."""
        images = cache.images(self.data, domain)
        if not self.bank:
            return images
        return self.bank.features(images, cache.images_key(self.data, domain), domain, progress)

    def prepare(self, progress: Progress) -> None:
        """Build or decode the images and compute features, unless the cache has them."""
        progress.stage(f"data: {self.data.name}", 0)
        cache.prepare(self.data, progress)
        for domain in self.data.domains if self.bank else ():
            self.images(domain, progress)

    def clients_of_data(self) -> Layout:
        """Cut every target domain into clients; a function of the data and the seed alone."""
        rows: dict[ClientId, tuple[str, Tensor]] = {}
        empty = list(self.data.folder.empty) if self.data.folder else []
        for domain in self.data.domains:
            if domain == self.spec.source:
                continue
            for client, part in self._shards(domain).items():
                if len(part):
                    rows[client] = (domain, part)
                else:
                    empty.append(client)
        if not rows:
            raise TooFewClients(f"no client of {self.spec.benchmark} has an image")
        return Layout(rows, empty)

    @cached_property
    def styles(self) -> Tensor | None:
        """The clients' styles (K, C, 3, 3) that the source model is trained in; None: in its images' own."""
        if self.spec.pretrain_styles == "source" or self.spec.source_model:
            return None
        parts = self.clients_of_data().rows.values()
        return torch.stack([style(take(self.images(domain), rows))["amplitude"] for domain, rows in parts])

    def service(self, layout: Layout, source: Callable[[], Source] | None = None) -> ClientService:
        """Return the clients' side for the clients of a layout: images, and apart from them labels.

        ``source`` returns the source model, for runs in which clients need its answers.
        """
        truth = {
            domain: labels(self.data, domain) for domain in {domain for domain, _ in layout.rows.values()}
        }
        return ClientService(
            data=ClientImages(layout.rows, self.images, self.views),
            labels={c: known[r] for c, (d, r) in layout.rows.items() if (known := truth[d]) is not None},
            network=self.network,
            objective=self.objective,
            training=self.training,
            seed=self.spec.seed,
            describe=self.method.profile,
            source=source,
            compared=self.spec.select == "agreement",
            class_shares=self.spec.estimates_shares,
            site_share=self.spec.site_share if source else 0.0,
            together=self.spec.judge_together,
        )

    def _shards(self, domain: str) -> dict[ClientId, Tensor]:
        spec = self.spec
        if spec.class_skew:
            seed = stream_seed(spec.seed, "skewed-partition", domain)
            parts = skewed_shards(
                known_labels(self.data, domain), spec.clients_per_domain, spec.class_skew, seed
            )
        else:
            count = cache.image_count(self.data, domain)
            parts = shards(count, spec.clients_per_domain, stream(spec.seed, "partition", domain))
        if spec.clients:
            return {domain: parts[0]}
        digits = len(str(len(parts) - 1))
        return {f"{domain}-{number:0{digits}}": part for number, part in enumerate(parts)}

    def _check_feasible(self) -> None:
        spec, rule, clients = self.spec, self.rule, self.layout.clients
        if len(clients) < rule.least_clients:
            raise TooFewClients(
                f"{spec.method} needs at least {rule.least_clients} clients, and there are {len(clients)}; "
                "raise clients_per_domain, or choose another method."
            )
        sampled = len(self.schedule.sample(clients, spec.seed, 1))
        if sampled < rule.least_replies():
            raise UsageError(
                f"aggregation={spec.hyper.get('aggregation')} needs at least {rule.least_replies()} clients "
                f"in a round, and {sampled} take part; raise participation, or lower attackers."
            )
        if Need.PREVIOUS in self.objective.needs:
            self._check_second_turn()

    def _check_second_turn(self) -> None:
        spec, rounds = self.spec, range(1, self.spec.rounds + 1)
        clients = self.layout.clients
        turns = Counter(c for r in rounds for c in self.schedule.sample(clients, spec.seed, r))
        if max(turns.values()) < 2:
            raise UsageError(
                f"{spec.method} contrasts a client's model with its last one, and with rounds={spec.rounds} "
                f"and participation={spec.participation:g} no client takes part twice; raise one of them."
            )


def find_data(spec: RunSpec) -> Benchmark:
    """Return the run's data set, whatever its network needs: to count images, nothing is fetched."""
    skip = spec.on_bad == "skip"
    data = benchmark(spec.benchmark, skip, spec.image_size, spec.classes, spec.trained_on)
    spec.check_source(data.domains)
    return data


def load_data(spec: RunSpec) -> Benchmark:
    """Return the run's data set, with the views that its network needs."""
    data = find_data(spec)
    if spec.source_model:
        card = read_card(spec.source_model)
        # Of sites no labels are expected: their folders may be years or cameras.
        if isinstance(data.folder, Folder) and spec.clients:
            folder = data.folder.of_sites(card.classes)
            data = replace(data, folder=folder, classes=folder.tree.classes)
        return _as_in_card(data, card)
    if data.folder:
        data.folder.require_same_classes()
    return replace(data, views=_views(spec, data.views))


def _views(spec: RunSpec, views: Views) -> Views:
    """Return a data set's views, normalised as the network knows images and of the size that is asked for."""
    if not isinstance(views, AugmentedViews):
        return views
    known = normalisation(spec.model)
    views = replace(views, mean=known[0], std=known[1]) if known else views
    views = views.shown_whole() if spec.framing == "whole" else views
    views = views if spec.mirror == "auto" else replace(views, flip=spec.mirror == "yes")
    views = replace(views, crop_area=(spec.crops, 1.0)) if spec.crops else views
    return replace(views, side=spec.image_size) if spec.image_size else views


def _as_in_card(data: Benchmark, card: ModelCard) -> Benchmark:
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


def network_of(spec: RunSpec, data: Benchmark) -> Network:
    """Build the run's network on its device, with the weights that source training starts from."""
    seed = stream_seed(spec.seed, "source-init")
    with compute_threads(spec.threads):
        network = build_network(spec.model, data.shape, len(data.classes), seed, spec.trunk == "frozen")
    if spec.micro_batch and network.norms:
        raise UsageError(
            f"micro_batch={spec.micro_batch}: the statistics of BatchNorm in {spec.model} are those of a "
            "whole batch; leave it 0, or lower batch_size."
        )
    return to_device(network, spec.device, spec.precision)


def feature_bank(spec: RunSpec, data: Benchmark, network: Network) -> FeatureBank:
    """Take the network's trunk out, all but the thawed blocks, and return what computes its features."""
    trunk = network.take_trunk(spec.thaw, spec.model, data.shape)
    sha256 = weights.digest(trunk.state_dict())
    for part in list(trunk.modules()):
        if isinstance(part, Foldable):
            part.fold()
    views = asdict(data.views) if isinstance(data.views, AugmentedViews) else repr(data.views)
    identity = [spec.model, sha256, views, spec.feature_views, spec.device, spec.precision, torch.__version__]
    identity += [spec.thaw] if spec.thaw else []  # features from before the key was there stay known
    device = network.device
    with torch.inference_mode():
        seen = data.views.evaluate(torch.zeros(1, *data.shape, dtype=torch.uint8))  # of another size, maybe
        shape = tuple(trunk(seen.to(device)).shape[1:])
    return FeatureBank(
        trunk=lambda images: trunk(images.to(device)),
        shape=shape,
        views=data.views,
        count=spec.feature_views,
        identity=json.dumps(identity),
        trunk_sha256=sha256,
    )


def training_of(spec: RunSpec) -> Training:
    """Return the clients' optimiser settings."""
    joint = {"auto": None, "joint": True, "separate": False}[spec.view_passes]
    return Training(
        spec.local_epochs,
        spec.batch_size,
        joint=joint,
        label_view=spec.label_view,
        micro_batch=spec.micro_batch,
        statistics=SiteStatistics(spec.statistics_prior) if spec.statistics == "site" else None,
    )
