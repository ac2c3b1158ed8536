"""What the server sends, what it does with the replies, and which model is deployed at a client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from fedscal.core.types import ClientId, Groups, Reply, Weights

if TYPE_CHECKING:
    from torch import Tensor

_NOTES, _PER_CLIENT = "notes", "per_client"
_ONCE_NOTES = ("cluster/", "blend/")
"""What checkpoints of earlier versions hold about clients among the notes."""


@dataclass(frozen=True)
class Briefing:
    """What the server has before the first round.

    Attributes:
        source: the source model.
        first_layer: the name of the first layer's weights. Models that crossed a wire have lost the order
            of their layers, so it cannot be read off them.
        rounds: number of rounds.
        gaussians: ``mean`` and ``variance`` (J, d) of the source features of every class, taken when the
            source model was trained; empty for a model that came without them.
        profiles: the clients' profiles; empty unless the method has them.
        seed: the run's, for what a rule draws before the first round.
    """

    source: Weights
    first_layer: str
    rounds: int = 1
    gaussians: Weights = field(default_factory=dict)
    profiles: Mapping[ClientId, Weights] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class ServerState:
    """All that the server keeps between rounds, as tensors.

    Attributes:
        models: its models by name.
        notes: what else the rule keeps: counters, an optimiser's moments.
        per_client: what it keeps about each client: its cluster, the shares of its blend.
        own: the models of single clients, on disk where a run keeps them.
    """

    models: Groups
    notes: Weights = field(default_factory=dict)
    per_client: Mapping[ClientId, Weights] = field(default_factory=dict)
    own: Groups = field(default_factory=dict)

    def own_model(self, client: ClientId) -> Weights | None:
        """Return a client's own model, if it has one; earlier versions kept it among the server's."""
        return self.own.get(client) or self.models.get(client)

    def about(self, client: ClientId) -> Weights:
        """Return what is kept about a client; nothing is, before its first reply."""
        return self.per_client.get(client, {})

    def facts(self) -> Weights:
        """Return what is kept about all clients as ``kind/client``, sorted: a file has lost their order."""
        return {
            f"{kind}/{client}": self.per_client[client][kind]
            for client in sorted(self.per_client)
            for kind in sorted(self.per_client[client])
        }

    def groups(self) -> Groups:
        """Return the state as named groups, to be written, without the models of single clients."""
        beside = {_NOTES: self.notes, _PER_CLIENT: self.facts()}
        return {**self.models, **{name: group for name, group in beside.items() if group}}

    @classmethod
    def of(cls, groups: Groups, own: Groups | None = None) -> ServerState:
        """Return the state that ``groups`` was made of, by this version or an earlier one."""
        models = {name: group for name, group in groups.items() if name not in (_NOTES, _PER_CLIENT)}
        notes = dict(groups.get(_NOTES, {}))
        facts = dict(groups.get(_PER_CLIENT, {}))
        facts |= {name: notes.pop(name) for name in list(notes) if name.startswith(_ONCE_NOTES)}
        per_client: dict[ClientId, dict[str, Tensor]] = {}
        for name, tensor in facts.items():
            kind, _, client = name.partition("/")
            per_client.setdefault(client, {})[kind] = tensor
        return cls(models, notes, per_client, own or {})


class ServerRule(ABC):
    """Dispatch and aggregation: pure functions of an explicit state. Rules are frozen dataclasses."""

    trains: ClassVar[bool] = True
    """Whether clients train at all."""
    least_clients: ClassVar[int] = 1
    """With fewer clients a run is refused before it starts."""

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
        """Return the model that a client is evaluated with, also one that never replied."""

    def delivered(self, state: ServerState) -> Groups:
        """Return the models that a run writes as its result, by name."""
        return {**state.models, **state.own}

    def calls_everyone(self, state: ServerState) -> bool:
        """Whether the next round is for all clients, sampled or not."""
        return False

    def least_replies(self) -> int:
        """Return how many replies a round needs; with fewer it is void."""
        return 1

    def suspects(self, state: ServerState, replies: Sequence[Reply]) -> Mapping[ClientId, str]:
        """Return the clients whose replies must be dropped, and why."""
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
        """Return the source model."""
        return state.models["server"]


@dataclass(frozen=True)
class Isolated(ServerRule):
    """LoA: every client continues from its own model; nothing is shared after the source model.

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
        """Replace each client's last model by its reply."""
        return replace(state, own={**state.own, **{reply.client: reply.weights for reply in replies}})

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Return a client's own model, or the source model before its first turn."""
        return state.own_model(client) or state.models["source"]
