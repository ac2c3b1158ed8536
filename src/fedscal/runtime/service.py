"""The client side of a federation, whatever carries the messages: requests in, responses out.

It holds the clients' images for training and, apart from them, labels for evaluation if there are
any. ``train`` passes the images on and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

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
from fedscal.models.statistics import SiteStatistics, load_at_site, predict_at_site, unlikeness
from fedscal.runtime.evaluate import client_metrics
from fedscal.runtime.messages import (
    MODEL,
    PROFILE,
    STATISTICS,
    UNLIKENESS,
    Request,
    Response,
    failure,
    package_of,
    training_response,
)


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
    _source_answers: dict[ClientId, Tensor] = field(default_factory=dict)
    _known: dict[ClientId, SiteStatistics] = field(default_factory=dict)

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
            return Response({"metrics": self.evaluate(request.clients, request.tensors[MODEL])})
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
        training = replace(self.training, statistics=self._statistics(client))
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
        """Return a client's own statistics for a model."""
        data = self.data[client]
        load_at_site(self.network, model, data.images, data.views.evaluate, self._statistics(client))
        return weights.statistics(self.network.state_dict())

    def evaluate(self, clients: Sequence[ClientId], model: Weights) -> dict[ClientId, Metrics]:
        """Evaluate a model on the data of each client."""
        with oom_hint():
            return {client: self._evaluate(client, model) for client in clients}

    def _evaluate(self, client: ClientId, model: Weights) -> Metrics:
        answers = self._answers_of_source(client)
        sweep = Sweep(lambda: self._predict(client, model))
        pseudo = self.objective.terms[0].prepare(sweep, None).get("pseudo_labels")
        return client_metrics(sweep.prediction, pseudo, self.labels.get(client), answers)

    def _answers_of_source(self, client: ClientId) -> Tensor | None:
        """Return the classes that the source model predicts; they never change, so they are kept."""
        if self.source and self.compared and client not in self._source_answers:
            answers = self._predict(client, self.source().weights).logits.argmax(dim=1)
            self._source_answers[client] = answers
        return self._source_answers.get(client)

    def _predict(self, client: ClientId, model: Weights) -> Prediction:
        """Return a model's predictions of a client's images, as the client uses the model."""
        data = self.data[client]
        return predict_at_site(
            self.network, model, data.images, data.views.evaluate, self._statistics(client)
        )

    def _statistics(self, client: ClientId) -> SiteStatistics | None:
        """Return how a client takes its statistics; its class shares never change, so they are kept."""
        if not (self.source and self.class_shares and self.training.statistics):
            return self.training.statistics
        if client not in self._known:
            source, data = self.source(), self.data[client]
            self._known[client] = self.training.statistics.knowing_classes(
                self.network, source.weights, data.images, data.views.evaluate, source.class_shares
            )
        return self._known[client]
