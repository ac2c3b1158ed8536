"""What the authors' code does otherwise than their paper, each as a switch (docs/deviations.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedscal.core.options import option
from fedscal.core.types import ClientId, Groups, Reply, Weights
from fedscal.server.rounds import Schedule
from fedscal.server.rule import ServerState

_TOKENS = ("cls_token", "pos_embed", "position_embeddings")
"""The last part of the names of a ViT's class token and position embeddings."""
_HALF_PERIOD = 500


@dataclass(frozen=True)
class AuthorsCode:
    """Switches of the averaging server."""

    average_tokens: bool = option(True, "average a ViT's class token and position embeddings too")
    judged_model: Literal["server", "client"] = option(
        "server", "accuracy of the server's model, or of each client's own of its last participation"
    )

    def aggregated(self, aggregate: Weights, server: Weights) -> Weights:
        """Return the aggregate, with the server's tokens if they are not averaged."""
        if self.average_tokens:
            return aggregate
        return {name: (server if name.endswith(_TOKENS) else aggregate)[name] for name in aggregate}

    def own_models(self, replies: Sequence[Reply]) -> Groups:
        """Return the models of clients that must be kept to evaluate them."""
        return {reply.client: reply.weights for reply in replies} if self.judged_model == "client" else {}

    def trained(self, state: ServerState, client: ClientId) -> Weights:
        """Return the trained model that stands for a client when it is judged."""
        own = state.own_model(client) if self.judged_model == "client" else None
        return own or state.models["server"]


def oscillating_rates(
    schedule: Schedule, clients: Sequence[ClientId], seed: int, batches: Mapping[ClientId, int]
) -> list[float]:
    """Return the learning rate of every round: a cosine of half-period 500 over all clients' mini-batches.

    It is stepped by every mini-batch of every client and read at the start of a round.

    Args:
        schedule: who takes part, and the first learning rate.
        clients: all clients.
        seed: of the run.
        batches: how many mini-batches a client trains on in a round.
    """
    steps, rates = 0, []
    for round_ in range(1, schedule.rounds + 1):
        rates.append(schedule.lr * 0.5 * (1 + math.cos(math.pi * steps / _HALF_PERIOD)))
        steps += sum(batches[client] for client in schedule.sample(clients, seed, round_))
    return rates
