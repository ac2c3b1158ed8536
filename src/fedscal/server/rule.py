"""What the server sends, what it does with the replies, and which model a client is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from fedscal import weights
from fedscal.options import option
from fedscal.types import ClientId, Groups, Reply, Weights


@dataclass(frozen=True)
class ServerState:
    """All that the server knows between rounds, made of tensors: its models by name."""

    models: Groups


@runtime_checkable
class ServerRule(Protocol):
    """Dispatch and aggregation: pure functions of an explicit state."""

    trains: ClassVar[bool]
    """Whether clients are asked to train at all."""

    def init(self, source: Weights) -> ServerState:
        """Return the state before the first round."""
        ...

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Return the models that a client receives; ``server`` is the one it starts from."""
        ...

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Return the next state; the replies are sorted by client."""
        ...

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Return the model that a client is judged by."""
        ...


@dataclass(frozen=True)
class Frozen:
    """Source-only: the source model, never adapted."""

    trains: ClassVar[bool] = False

    def init(self, source: Weights) -> ServerState:
        """Hold the source model."""
        return ServerState({"server": source})

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send the source model."""
        return state.models

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Change nothing."""
        return state

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Judge every client by the source model."""
        return state.models["server"]


@dataclass(frozen=True)
class Isolated:
    """LoA: every client goes on from its own model; nothing is shared after the source model.

    A client trains in the rounds in which it is sampled, so it gets exactly as many epochs as the
    same client of a federated method under the same seed.
    """

    trains: ClassVar[bool] = True

    def init(self, source: Weights) -> ServerState:
        """Hold the source model for the clients that have none of their own yet."""
        return ServerState({"source": source})

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send a client its own model."""
        return {"server": self.deployed(state, client)}

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Put each reply in the place of the client's last one."""
        return ServerState({**state.models, **{reply.client: reply.weights for reply in replies}})

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Judge a client by its own model, or by the source model before its first turn."""
        return state.models.get(client, state.models["source"])


@dataclass(frozen=True)
class Average:
    r"""FedAvg: w^{r+1} = sum_k s_k w_k over the sampled clients, s_k = 1/Q or n_k / sum n."""

    trains: ClassVar[bool] = True
    aggregation: Literal["uniform", "size"] = option("uniform", "weight of a client in the average")

    def init(self, source: Weights) -> ServerState:
        """Start from the source model."""
        return ServerState({"server": source})

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send the shared model."""
        return state.models

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Average the replies in client order."""
        total = sum(reply.examples for reply in replies)
        shares = [reply.examples / total for reply in replies] if self.aggregation == "size" else None
        return ServerState({"server": weights.mean([reply.weights for reply in replies], shares)})

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Judge every client by the shared model."""
        return state.models["server"]
