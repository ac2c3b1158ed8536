"""FedWCA: one model a cluster of clients, blended by every client for itself. A reconstruction.

Mori, Anderson, Furukawa, Kamiya: Federated Source-free Domain Adaptation for Classification: Weighted
Cluster Aggregation for Unlabeled Data. WACV 2025. The full text was not at hand: docs/methods.md says what
was known and what was chosen.

Beyond its weights a client tells how much each cluster model counts in its blend: which other clients'
data its own resemble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedscal.core import weights
from fedscal.core.clusters import finch
from fedscal.core.lazy import F, torch
from fedscal.core.types import ClientId, Groups, Reply, Weights
from fedscal.server.rule import Briefing, ServerRule, ServerState

if TYPE_CHECKING:
    from torch import Tensor

_LAYER = "layer/"
"""A note of this name and the first layer's says which tensor tells clients apart."""


def direction(layer: Tensor) -> Tensor:
    """Return a layer's weights as a direction: flat, in float64, of length 1."""
    return F.normalize(layer.double().flatten(), dim=0)


@dataclass(frozen=True)
class WeightedClusters(ServerRule):
    """In the first round everyone trains; FINCH on the first layers then parts the clients for good.

    A cluster's model is the mean of its members' replies of a round and stays where none replied. Every
    client receives all cluster models. It is judged by its own blend of them, with the shares that it
    reported last, and by its cluster's model before that.
    """

    least_clients: ClassVar[int] = 3

    def init(self, briefing: Briefing) -> ServerState:
        """Start from the source model, without clusters."""
        return ServerState({"server": briefing.source}, {_LAYER + briefing.first_layer: torch.tensor(True)})

    def calls_everyone(self, state: ServerState) -> bool:
        """Ask all clients until there are clusters."""
        return "server" in state.models

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send the models of all clusters; the source model while there are none."""
        return state.models

    def reports(self, sent: Groups) -> Groups:
        """Wait for the shares of the blend, one a cluster."""
        return {} if "server" in sent else {"start": {"blend": torch.zeros(len(sent))}}

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Average inside the clusters; the first time, find them."""
        notes = dict(state.notes)
        if "server" in state.models:
            notes |= _partition(replies, _layer(notes))
            models: dict[str, Weights] = {}
        else:
            models = dict(state.models)
            notes |= {f"blend/{r.client}": _clean(r.reports["start"]["blend"]) for r in replies}
        notes |= {f"cluster/{r.client}": _cluster(notes, r) for r in replies}
        members: dict[int, list[Weights]] = {}
        for reply in replies:
            members.setdefault(int(notes[f"cluster/{reply.client}"]), []).append(reply.weights)
        models |= {f"cluster-{number:03}": weights.mean(group) for number, group in sorted(members.items())}
        return ServerState(models, notes)

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Judge a client by its blend, else by its cluster's model, else by the mean of all."""
        if "server" in state.models:
            return state.models["server"]
        if f"blend/{client}" in state.notes:
            shares = state.notes[f"blend/{client}"].tolist()
            return weights.mean([state.models[name] for name in sorted(state.models)], shares)
        if f"cluster/{client}" in state.notes:
            return state.models[f"cluster-{int(state.notes[f'cluster/{client}']):03}"]
        return weights.mean([state.models[name] for name in sorted(state.models)])


def _layer(notes: Weights) -> str:
    return next(name.removeprefix(_LAYER) for name in notes if name.startswith(_LAYER))


def _partition(replies: Sequence[Reply], layer: str) -> dict[str, Tensor]:
    """Return the cluster of every client, and each cluster's mean direction for those who come later."""
    layers = torch.stack([direction(reply.weights[layer]) for reply in replies])
    labels = finch(layers) if len(replies) > 1 else torch.zeros(1, dtype=torch.long)
    centres = {
        f"centre/{number:03}": layers[labels == number].mean(dim=0) for number in range(int(labels.max()) + 1)
    }
    return {f"cluster/{r.client}": label for r, label in zip(replies, labels, strict=True)} | centres


def _cluster(notes: dict[str, Tensor], reply: Reply) -> Tensor:
    """Return a client's cluster; one that missed the first round joins the nearest."""
    if f"cluster/{reply.client}" in notes:
        return notes[f"cluster/{reply.client}"]
    centres = torch.stack([notes[name] for name in sorted(notes) if name.startswith("centre/")])
    return F.cosine_similarity(direction(reply.weights[_layer(notes)])[None], centres).argmax()


def _clean(shares: Tensor) -> Tensor:
    """Return shares that are not negative and sum to 1, whatever a client says."""
    positive = shares.double().clamp_min(0)
    equal = torch.full_like(positive, 1 / len(positive))
    return positive / positive.sum() if positive.sum() > 0 else equal
