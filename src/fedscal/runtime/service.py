"""A site: the client side of a federation, whatever carries the messages.

It holds the clients' images for training and, apart from them, labels for evaluation if there are
any. ``train`` passes the images on and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fedscal.client.term import Objective
from fedscal.client.training import ClientData, Training, local_update
from fedscal.core.rng import Streams
from fedscal.core.types import ClientId, Memory, Metrics, Package, Profile, Reply, Sweep, Weights
from fedscal.models.device import device_memory
from fedscal.models.network import Network, predict
from fedscal.runtime.evaluate import judge


@dataclass(frozen=True)
class Site:
    """Clients that share a machine, and with it one network to work on."""

    data: Mapping[ClientId, ClientData]
    labels: Mapping[ClientId, Tensor]
    network: Network
    objective: Objective
    training: Training
    seed: int
    describe: Profile | None = None
    """What the method has a client tell of its images, once; None: nothing."""

    def train(self, client: ClientId, package: Package, memory: Memory) -> tuple[Reply, Memory]:
        """Let a client adapt the package's model to its images."""
        streams = Streams(self.seed, client, package.round)
        return local_update(
            package, memory, self.data[client], self.objective, self.training, streams, self.network
        )

    def profile(self, client: ClientId) -> Weights:
        """Let a client tell of its images what the method asks for."""
        assert self.describe is not None, "the method asks for no profile"
        return self.describe(self.data[client].images)

    def evaluate(self, clients: Sequence[ClientId], weights: Weights) -> dict[ClientId, Metrics]:
        """Let clients judge a model, each on its own data."""
        self.network.load_state_dict(weights)
        with device_memory():
            return {client: self._judge(client) for client in clients}

    def _judge(self, client: ClientId) -> Metrics:
        data = self.data[client]
        sweep = Sweep(lambda: predict(self.network, data.images, data.views.evaluate))
        pseudo = self.objective.terms[0].prepare(sweep, None).get("pseudo_labels")
        return judge(sweep.prediction, pseudo, self.labels.get(client))
