"""The client side of a federation, whatever carries the messages: requests in, responses out.

It holds the clients' images for training and, apart from them, labels for evaluation if there are
any. ``train`` passes the images on and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from fedscal.client.term import Objective
from fedscal.client.training import ClientData, Training, local_update
from fedscal.core import weights
from fedscal.core.rng import Streams
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
from fedscal.models.shares import ramp
from fedscal.models.statistics import SiteStatistics, load_at_site, predict_at_site, unlikeness
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

_SURE = (0.5, 0.58)
"""Mean confidence from which on the source model is sure of a client's images, and from which on fully.

Where it is, there is little to gain and something to lose: docs/methods.md has the measurements.
"""


@dataclass(frozen=True)
class _FromSource:
    """What a client learned from the source model's answers to its images.

    Attributes:
        statistics: how it takes its statistics, its class shares included.
        answers: the classes that the source model predicts, if they are compared.
        source: the source model.
        share: its share in what answers at this client.
    """

    statistics: SiteStatistics | None
    answers: Tensor | None = None
    source: Weights = field(default_factory=dict)
    share: float = 0.0

    def used(self, model: Weights) -> Weights:
        """Return the model that answers in the place of another: where the source model is sure, a mean."""
        return weights.mean([self.source, model], [self.share, 1 - self.share]) if self.share else model


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
    sure_share: float = 0.0
    """The source model's share in the models that answer at clients where it is sure."""
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
        streams = Streams(self.seed, client, package.round)
        training = replace(self.training, statistics=self._from_source(client).statistics)
        return local_update(
            package, memory, self.data[client], self.objective, training, streams, self.network
        )

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
        data, known = self.data[client], self._from_source(client)
        load_at_site(self.network, known.used(model), data.images, data.views.evaluate, known.statistics)
        return self.own_tensors(client)

    def own_tensors(self, client: ClientId) -> Weights:
        """Return what is a client's own in the model that the network holds: the one it was last asked about.

        Where the source model has a share, that is all of it.
        """
        state = self.network.state_dict()
        return weights.snapshot(state) if self._from_source(client).share else weights.statistics(state)

    def evaluate(
        self, clients: Sequence[ClientId], model: Weights, received: Weights | None = None
    ) -> dict[ClientId, Metrics]:
        """Evaluate a model on the data of each client; beside the one that it was trained from, if given."""
        own = self.training.statistics or self.sure_share
        with oom_hint():
            if self.together and received is None and not own:
                return self._evaluate_together(clients, model)
            return {client: self._evaluate(client, model, received) for client in clients}

    def _evaluate_together(self, clients: Sequence[ClientId], model: Weights) -> dict[ClientId, Metrics]:
        for client in clients:
            self._from_source(client)  # before the network holds the model: the source model may be asked
        self.network.load_state_dict(model)
        images = {client: self.data[client].images for client in clients}
        made = predict_together(self.network, images, self.data[clients[0]].views.evaluate)
        return {client: self._metrics(client, _swept(prediction)) for client, prediction in made}

    def _evaluate(self, client: ClientId, model: Weights, received: Weights | None) -> Metrics:
        labels = self.labels.get(client)
        # The model itself goes last: the network holds it then.
        before = self._predict(client, received) if received is not None and labels is not None else None
        sweep = Sweep(lambda: self._predict(client, model))
        metrics = self._metrics(client, sweep)
        if before is None or labels is None:
            return metrics
        return {**metrics, **joint_errors(sweep.prediction, before, labels)}

    def _metrics(self, client: ClientId, sweep: Sweep) -> Metrics:
        pseudo, labels = self.objective.pseudo_labels(sweep), self.labels.get(client)
        return client_metrics(sweep.prediction, pseudo, labels, self._from_source(client).answers)

    def _predict(self, client: ClientId, model: Weights) -> Prediction:
        """Return a model's predictions of a client's images, as the client uses the model."""
        data, known = self.data[client], self._from_source(client)
        return predict_at_site(
            self.network, known.used(model), data.images, data.views.evaluate, known.statistics
        )

    def _from_source(self, client: ClientId) -> _FromSource:
        """Return what a client learned from the source model's answers; they never change, so it is kept."""
        if client not in self._learned:
            self._learned[client] = self._ask_source(client)
        return self._learned[client]

    @cached_property
    def _source(self) -> Source:
        """The source model, loaded once for all clients: some of them go on using it."""
        assert self.source is not None, "nobody asks for it where there is none"
        return self.source()

    def _ask_source(self, client: ClientId) -> _FromSource:
        statistics = self.training.statistics
        if not (self.source and (self.compared or self.class_shares or self.sure_share)):
            return _FromSource(statistics)
        source, data = self._source, self.data[client]
        view = data.views.evaluate
        if statistics and self.class_shares:
            statistics = statistics.knowing_classes(
                self.network, source.weights, data.images, view, source.class_shares
            )
        answered = predict_at_site(self.network, source.weights, data.images, view, statistics)
        sure = ramp(float(answered.probabilities.amax(dim=1).double().mean()), *_SURE)
        answers = answered.logits.argmax(dim=1) if self.compared else None
        return _FromSource(statistics, answers, source.weights, self.sure_share * sure)


def _swept(prediction: Prediction) -> Sweep:
    """Return a pass that was made already."""
    return Sweep(lambda: prediction)
