"""FedAvg: the server's model is the average of the sampled clients' models.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedscal.core import weights
from fedscal.core.options import option
from fedscal.core.types import ClientId, Groups, Reply, Weights
from fedscal.server import aggregation as robust
from fedscal.server.rule import Briefing, ServerRule, ServerState

if TYPE_CHECKING:
    from torch import Tensor

_TOKENS = ("cls_token", "pos_embed", "position_embeddings")
"""The last part of the names that a ViT's class token and position embeddings go by."""


@dataclass(frozen=True)
class Average(ServerRule):
    r"""w^{r+1} = sum_k s_k w_k over the sampled clients, s_k = 1/Q or n_k / sum n; or a robust middle."""

    aggregation: Literal["uniform", "size", "median", "trimmed-mean", "krum"] = option(
        "uniform", "weight of a client in the average, or what is taken in its place to bear bad clients"
    )
    attackers: int = option(
        1, "bad clients in a round that trimmed-mean and krum bear", low=1, high=10_000, later=True
    )
    norm_limit: float = option(
        0.0,
        "a reply that went so many times as far as the median one is dropped; 0: none is",
        low=0,
        later=True,
    )
    server_momentum: float = option(0.0, "share of the server's last step that is taken again", low=0, high=1)
    average_tokens: bool = option(True, "average a ViT's class token and position embeddings too")
    judged_model: Literal["server", "client"] = option(
        "server", "accuracy of the server's model, or of each client's own of its last participation"
    )

    def init(self, briefing: Briefing) -> ServerState:
        """Start from the source model."""
        return ServerState({"server": briefing.source})

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send the shared model."""
        return {"server": state.models["server"]}

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Average the replies in client order."""
        server = state.models["server"]
        merged = self._merged(replies, server)
        if not self.average_tokens:
            merged |= {name: server[name] for name in merged if name.endswith(_TOKENS)}
        notes: Mapping[str, Tensor] = {}
        if self.server_momentum:
            merged, notes = _with_momentum(server, merged, state.notes, self.server_momentum)
        own = {reply.client: reply.weights for reply in replies} if self.judged_model == "client" else {}
        return ServerState({**state.models, "server": merged, **own}, notes)

    def _merged(self, replies: Sequence[Reply], server: Weights) -> dict[str, Tensor]:
        models = [reply.weights for reply in replies]
        match self.aggregation:
            case "median":
                return robust.median(models)
            case "trimmed-mean":
                return robust.trimmed_mean(models, self.attackers)
            case "krum":
                return robust.krum(models, server, self.attackers)
        total = sum(reply.examples for reply in replies)
        shares = [reply.examples / total for reply in replies] if self.aggregation == "size" else None
        return weights.mean(models, shares)

    def least_replies(self) -> int:
        """Return how many replies a robust aggregation needs to outvote its attackers."""
        few = {"median": 3, "trimmed-mean": 2 * self.attackers + 1, "krum": 2 * self.attackers + 3}
        return few.get(self.aggregation, 1)

    def suspects(self, state: ServerState, replies: Sequence[Reply]) -> dict[ClientId, str]:
        """Name the replies that are much farther from the server's model than the others."""
        if not self.norm_limit or len(replies) < 3:
            return {}
        steps = robust.relative_steps([reply.weights for reply in replies], state.models["server"])
        return {
            reply.client: f"went {farthest:.0f} times as far as the median client in its {name}"
            for name, found in steps.items()
            for reply, farthest in zip(replies, found, strict=True)
            if farthest > self.norm_limit
        }

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Judge every client by the shared model, or by its own if that is asked for."""
        server = state.models["server"]
        return state.models.get(client, server) if self.judged_model == "client" else server


def _with_momentum(
    server: Weights, mean: dict[str, Tensor], velocity: Weights, momentum: float
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    r"""Take v <- m v + (mean - w), w <- w + v for parameters; buffers take the mean as it is."""
    moved, steps = dict(mean), {}
    for name in mean:
        if not mean[name].is_floating_point() or weights.is_statistic(name):
            continue
        step = mean[name].double() - server[name].double()
        steps[name] = step + momentum * velocity[name] if name in velocity else step
        moved[name] = (server[name].double() + steps[name]).to(mean[name].dtype)
    return moved, steps
