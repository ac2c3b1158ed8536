"""FedAvg: the server's model moves to the aggregate of the sampled clients' models.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fedscal.core.types import ClientId, Groups, Reply, Weights
from fedscal.server.aggregation import Aggregation
from fedscal.server.authors import AuthorsCode
from fedscal.server.ensemble import SourceShare
from fedscal.server.optimizer import ServerOptimizer
from fedscal.server.rule import Briefing, ServerRule, ServerState
from fedscal.server.screen import NormLimit


@dataclass(frozen=True)
class Average(ServerRule):
    """Screen, aggregate, take the optimiser's step, deliver: pieces, each with options of its own."""

    aggregation: Aggregation = field(default_factory=Aggregation)
    limit: NormLimit = field(default_factory=NormLimit)
    optimizer: ServerOptimizer = field(default_factory=ServerOptimizer)
    ensemble: SourceShare = field(default_factory=SourceShare)
    authors: AuthorsCode = field(default_factory=AuthorsCode)

    def init(self, briefing: Briefing) -> ServerState:
        """Start from the source model."""
        return ServerState(
            {"server": briefing.source, **self.ensemble.kept(briefing.source, briefing.source)}
        )

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send the shared model."""
        return {"server": state.models["server"]}

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Aggregate the replies in client order, then take the optimiser's step."""
        server = state.models["server"]
        aggregate = self.authors.aggregated(self.aggregation(replies, server), server)
        moved, moments = self.optimizer.step(server, aggregate, state.notes)
        kept = self.ensemble.kept(state.models.get("source", server), moved)
        own = self.authors.own_models(replies)
        return ServerState({**state.models, "server": moved, **kept}, moments, own={**state.own, **own})

    def least_replies(self) -> int:
        """Return how many replies the aggregation needs."""
        return self.aggregation.least_replies

    def suspects(self, state: ServerState, replies: Sequence[Reply]) -> Mapping[ClientId, str]:
        """Name the replies that are over the limit."""
        return self.limit.suspects(replies, state.models["server"])

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Return the shared model, or as the authors' code does the client's own."""
        return self.ensemble.mixed(self.authors.trained(state, client), state.models)

    def delivered(self, state: ServerState) -> Groups:
        """Return the shared model, and those of clients that are kept to judge them."""
        models = state.models if not self.ensemble.source_share else self.ensemble.without_kept(state.models)
        return {**models, **state.own, "server": self.ensemble.mixed(state.models["server"], state.models)}
