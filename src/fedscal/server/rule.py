"""What the server sends, what it does with the replies, and which model a client is judged by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from fedscal.core.types import ClientId, Groups, Reply, Weights

_NOTES = "notes"


@dataclass(frozen=True)
class Briefing:
    """What the server has before the first round.

    Attributes:
        source: the source model.
        first_layer: the name of the first layer's weights. Models that crossed a wire have lost the order
            of their layers, so it cannot be read off them.
        rounds: how many rounds there will be.
        gaussians: ``mean`` and ``variance`` (J, d) of the source features of every class, taken when the
            source model was trained; empty for a model that came without them.
        profiles: what the clients told of themselves, once; empty unless the method asks for it.
    """

    source: Weights
    first_layer: str
    rounds: int = 1
    gaussians: Weights = field(default_factory=dict)
    profiles: Mapping[ClientId, Weights] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState:
    """All that the server knows between rounds, made of tensors: its models, and notes beside them."""

    models: Groups
    notes: Weights = field(default_factory=dict)

    def groups(self) -> Groups:
        """Return models and notes as named groups, to be written."""
        return {**self.models, _NOTES: self.notes} if self.notes else self.models

    @classmethod
    def of(cls, groups: Groups) -> ServerState:
        """Take ``groups`` back."""
        models = {name: group for name, group in groups.items() if name != _NOTES}
        return cls(models, groups.get(_NOTES, {}))


class ServerRule(ABC):
    """Dispatch and aggregation: pure functions of an explicit state. Rules are frozen dataclasses."""

    trains: ClassVar[bool] = True
    """Whether clients are asked to train at all."""
    least_clients: ClassVar[int] = 1
    """With fewer clients than that the rule has no meaning, and the run is refused before it starts."""

    @abstractmethod
    def init(self, briefing: Briefing) -> ServerState:
        """Return the state before the first round."""

    @abstractmethod
    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Return the models that a client receives; ``server`` is the one it starts from."""

    @abstractmethod
    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Return the next state; the replies are sorted by client."""

    @abstractmethod
    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Return the model that a client is judged by."""

    def calls_everyone(self, state: ServerState) -> bool:
        """Whether the next round is for all clients, sampled or not."""
        return False

    def least_replies(self) -> int:
        """Return how many replies a round needs; with fewer it is void."""
        return 1

    def suspects(self, state: ServerState, replies: Sequence[Reply]) -> Mapping[ClientId, str]:
        """Return the clients whose replies are to be dropped, and why."""
        return {}

    def reports(self, sent: Groups) -> Groups:
        """Return an example of the reports that a reply to a package with these models must carry.

        Replies with others are refused by the server, and do not leave a site.
        """
        return {}


@dataclass(frozen=True)
class Frozen(ServerRule):
    """Source-only: the source model, never adapted."""

    trains: ClassVar[bool] = False

    def init(self, briefing: Briefing) -> ServerState:
        """Hold the source model."""
        return ServerState({"server": briefing.source})

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
class Isolated(ServerRule):
    """LoA: every client goes on from its own model; nothing is shared after the source model.

    A client trains in the rounds in which it is sampled, so it gets exactly as many epochs as the
    same client of a federated method under the same seed.
    """

    def init(self, briefing: Briefing) -> ServerState:
        """Hold the source model for the clients that have none of their own yet."""
        return ServerState({"source": briefing.source})

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send a client its own model."""
        return {"server": self.deployed(state, client)}

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Put each reply in the place of the client's last one."""
        return ServerState({**state.models, **{reply.client: reply.weights for reply in replies}})

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Judge a client by its own model, or by the source model before its first turn."""
        return state.models.get(client, state.models["source"])
