"""The client side of a federation, whatever carries the messages: requests in, responses out.

It holds the clients' images for training and, apart from them, labels for evaluation if there are
any. ``train`` passes the images on and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from torch import Tensor

from fedscal.client.term import Objective
from fedscal.client.training import ClientData, Training, local_update
from fedscal.core import weights
from fedscal.core.rng import Streams, stream
from fedscal.core.types import (
    ClientId,
    Failure,
    Memory,
    Metrics,
    Package,
    Prediction,
    Profile,
    Reply,
    Source,
    Sweep,
    Weights,
)
from fedscal.models.device import oom_hint
from fedscal.models.network import Network
from fedscal.models.statistics import SiteStatistics, load_at_site, predict_at_site, unlikeness
from fedscal.models.steadiness import Answers, chosen_share, steadiness, steady_answers, with_share
from fedscal.runtime.evaluate import client_metrics, joint_errors
from fedscal.runtime.messages import (
    MODEL,
    PROFILE,
    RECEIVED,
    STATISTICS,
    UNLIKENESS,
    Request,
    Response,
    failure,
    package_of,
    training_response,
)
from fedscal.runtime.together import predict_together


@dataclass(frozen=True)
class _FromSource:
    """What a client learned from the source model's answers to its images.

    Attributes:
        statistics: how it takes its statistics, its class shares included.
        answers: the source model's, if it was asked; how steady they are, if it may have a share.
    """

    statistics: SiteStatistics | None
    answers: Answers | None = None


@dataclass(frozen=True)
class ClientService:
    """Serves the clients of a machine, which share one network to work on."""

    data: Mapping[ClientId, ClientData]
    labels: Mapping[ClientId, Tensor]
    network: Network
    objective: Objective
    training: Training
    seed: int
    describe: Profile | None = None
    """What the method collects of a client's images, once; None: nothing."""
    source: Callable[[], Source] | None = None
    """The source model, if its answers are needed."""
    compared: bool = False
    """Whether answers are compared with those of the source model."""
    class_shares: bool = False
    """Whether clients estimate their class shares by those of the source model."""
    site_share: float = 0.0
    """The most that the source model counts in what answers at a client in the server model's place."""
    together: bool = False
    """Whether clients judge a model in batches that they share, where it is the same for all of them."""
    _learned: dict[ClientId, _FromSource] = field(default_factory=dict)

    def handle(self, request: Request) -> Response | Failure:
        """Carry out a request; an error is a failure, never raised."""
        try:
            return self._serve(request)
        except Exception as error:  # the failure of one request must not take the others down
            return failure(", ".join(request.clients), error)

    def _serve(self, request: Request) -> Response:
        if request.kind == "train":
            return training_response(*self.train(request.client, *package_of(request)))
        if request.kind == "evaluate":
            model, received = request.tensors[MODEL], request.tensors.get(RECEIVED)
            return Response({"metrics": self.evaluate(request.clients, model, received)})
        if request.kind == "compare":
            return Response({UNLIKENESS: self.compare(request.client, request.tensors[MODEL])})
        if request.kind == "profile":
            return Response({}, {PROFILE: self.profile(request.client)})
        if request.kind == "statistics":
            return Response({}, {STATISTICS: self.statistics(request.client, request.tensors[MODEL])})
        raise ValueError(f"no such request: {request.kind}")

    def train(self, client: ClientId, package: Package, memory: Memory) -> tuple[Reply, Memory]:
        """Let a client adapt the package's model to its images."""
        streams, (data, known) = Streams(self.seed, client, package.round), self._at(client)
        training = replace(self.training, statistics=known.statistics)
        return local_update(package, memory, data, self.objective, training, streams, self.network)

    def profile(self, client: ClientId) -> Weights:
        """Return the profile of a client's images that the method asks for."""
        assert self.describe is not None, "the method asks for no profile"
        return self.describe(self.data[client].images)

    def compare(self, client: ClientId, model: Weights) -> float:
        """Return how unlike a client's images are to those that a model knows."""
        data = self.data[client]
        self.network.load_state_dict(model)
        return unlikeness(self.network, data.images, data.views.evaluate)

    def statistics(self, client: ClientId, model: Weights) -> Weights:
        """Return what a client has of its own of a model: its statistics above all."""
        data, known = self._at(client)
        if self.site_share:
            self._answer(client, data, known, model)
        else:
            load_at_site(self.network, model, data.images, data.views.evaluate, known.statistics)
        return self.own_tensors()

    def own_tensors(self) -> Weights:
        """Return what is a client's own in the model that the network holds: the one it was last asked about.

        Where the source model may have a share, that is all of it.
        """
        state = self.network.state_dict()
        return weights.snapshot(state) if self.site_share else weights.statistics(state)

    def evaluate(
        self, clients: Sequence[ClientId], model: Weights, received: Weights | None = None
    ) -> dict[ClientId, Metrics]:
        """Evaluate a model on the data of each client; beside the one that it was trained from, if given."""
        own = self.training.statistics or self.site_share
        with oom_hint():
            if self.together and received is None and not own:
                return self._evaluate_together(clients, model)
            return {client: self._evaluate(client, model, received) for client in clients}

    def _evaluate_together(self, clients: Sequence[ClientId], model: Weights) -> dict[ClientId, Metrics]:
        # Before the network holds the model: the source model may be asked.
        sites = {client: self._at(client) for client in clients}
        self.network.load(model)
        images = {client: data.images for client, (data, _) in sites.items()}
        made = predict_together(self.network, images, sites[clients[0]][0].views.evaluate)
        return {
            client: self._metrics(client, sites[client][1], _swept(answered)) for client, answered in made
        }

    def _evaluate(self, client: ClientId, model: Weights, received: Weights | None) -> Metrics:
        """Return a client's metrics of a model; one that it trained itself is judged as it is."""
        data, known = self._at(client)
        if received is None and self.site_share:
            answered, share = self._answer(client, data, known, model)
            return {**self._metrics(client, known, _swept(answered)), **share}
        labels = self.labels.get(client)
        # The model itself goes last: the network holds it then.
        before = None if received is None or labels is None else self._predict(data, known, received)
        sweep = Sweep(lambda: self._predict(data, known, model))
        metrics = self._metrics(client, known, sweep)
        if before is None or labels is None:
            return metrics
        return {**metrics, **joint_errors(sweep.prediction, before, labels)}

    def _answer(
        self, client: ClientId, data: ClientData, known: _FromSource, model: Weights
    ) -> tuple[Prediction, Metrics]:
        """Return what answers at a client in a model's place, and how much of it is the source model's."""
        assert known.answers is not None, "where it may have a share, the source model is asked"
        learned = self._predict(data, known, model)
        share = chosen_share(known.answers, self._steady(client, data, learned), self.site_share)
        if share:
            learned = self._predict(data, known, with_share(self._source.weights, model, share))
        return learned, {"source_share": share, "source_steadiness": steadiness(known.answers.odds)}

    def _steady(self, client: ClientId, data: ClientData, prediction: Prediction) -> Answers:
        """Return the answers of the model that the network holds; all models are shown the same views."""
        strong = partial(data.views.strong, generator=stream(self.seed, "steadiness", client))
        return steady_answers(self.network, data.images, strong, prediction)

    def _metrics(self, client: ClientId, known: _FromSource, sweep: Sweep) -> Metrics:
        pseudo, labels = self.objective.pseudo_labels(sweep), self.labels.get(client)
        answers = known.answers.classes if self.compared and known.answers else None
        return client_metrics(sweep.prediction, pseudo, labels, answers)

    def _predict(self, data: ClientData, known: _FromSource, model: Weights) -> Prediction:
        """Return a model's predictions of a client's images, as the client uses the model."""
        return predict_at_site(self.network, model, data.images, data.views.evaluate, known.statistics)

    def _at(self, client: ClientId) -> tuple[ClientData, _FromSource]:
        """Return a client's images, and what it learned of them from the source model.

        Images in memory are copied whenever they are taken. What the source model answers never changes, so
        it is kept.
        """
        data = self.data[client]
        if not self._asks_source:
            return data, self._untaught
        if client not in self._learned:
            self._learned[client] = self._ask_source(client, data)
        return data, self._learned[client]

    @cached_property
    def _asks_source(self) -> bool:
        return bool(self.source and (self.compared or self.class_shares or self.site_share))

    @cached_property
    def _untaught(self) -> _FromSource:
        """What every client has where the source model is not asked."""
        return _FromSource(self.training.statistics)

    @cached_property
    def _source(self) -> Source:
        """The source model, loaded once for all clients: some of them go on using it."""
        assert self.source is not None, "nobody asks for it where there is none"
        return self.source()

    def _ask_source(self, client: ClientId, data: ClientData) -> _FromSource:
        statistics, source, view = self.training.statistics, self._source, data.views.evaluate
        if statistics and self.class_shares:
            statistics = statistics.knowing_classes(
                self.network, source.weights, data.images, view, source.class_shares
            )
        answered = predict_at_site(self.network, source.weights, data.images, view, statistics)
        if self.site_share:
            return _FromSource(statistics, self._steady(client, data, answered))
        return _FromSource(statistics, Answers(answered.logits.argmax(dim=1)))


def _swept(prediction: Prediction) -> Sweep:
    """Return a pass that was made already."""
    return Sweep(lambda: prediction)
