"""FedWCA: one model a cluster of clients, blended by every client for itself. A reconstruction.

Mori, Kihara, Miyagawa, Ebihara, Teranishi, Kashima: Federated Source-free Domain Adaptation for
Classification: Weighted Cluster Aggregation for Unlabeled Data. WACV 2025. Of its text (arXiv 2412.13757)
only the beginning was read: docs/methods.md says what is known from it and what was chosen.

Beyond its weights a client reports the share of each cluster model in its blend: which other clients' data
resemble its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from fedscal.core import weights
from fedscal.core.clusters import finch
from fedscal.core.lazy import F, torch
from fedscal.core.types import ClientId, Groups, Reply, Weights
from fedscal.server.rule import Briefing, ServerRule, ServerState

if TYPE_CHECKING:
    from torch import Tensor

_CENTRE = "centre/"
_LAYER = "layer/"
"""The note that ends in the name of the tensor that clients are clustered by."""


def direction(layer: Tensor) -> Tensor:
    """Return a layer's weights as a direction: flat, in float64, of length 1."""
    return F.normalize(layer.double().flatten(), dim=0)


@dataclass(frozen=True)
class WeightedClusters(ServerRule):
    """In the first round everyone trains; FINCH on the first layers then clusters the clients for good.

    A cluster's model is the mean of its members' replies of a round and stays where none replied. Every
    client receives all cluster models. It is evaluated with its own blend of them, by the shares that it
    reported last, and with its cluster's model before that.
    """

    least_clients: ClassVar[int] = 3

    def init(self, briefing: Briefing) -> ServerState:
        """Start from the source model, without clusters."""
        return ServerState({"server": briefing.source}, {_LAYER + briefing.first_layer: torch.tensor(True)})

    def calls_everyone(self, state: ServerState) -> bool:
        """Call all clients until there are clusters."""
        return "server" in state.models

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send the models of all clusters; the source model while there are none."""
        return state.models

    def reports(self, sent: Groups) -> Groups:
        """Require the shares of the blend, one per cluster."""
        return {} if "server" in sent else {"start": {"blend": torch.zeros(len(sent))}}

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Average inside the clusters; the first time, find them."""
        if "server" in state.models:
            state = _partition(state, replies)
        else:
            state = replace(state, per_client=_updated(state, replies))
        members: dict[int, list[Weights]] = {}
        for reply in replies:
            members.setdefault(int(state.about(reply.client)["cluster"]), []).append(reply.weights)
        means = {_name(number): weights.mean(group) for number, group in sorted(members.items())}
        return replace(state, models={**state.models, **means})

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Return a client's blend, else its cluster's model, else the mean of all."""
        if "server" in state.models:
            return state.models["server"]
        kept, models = state.about(client), [state.models[name] for name in sorted(state.models)]
        if "cluster" in kept and "blend" not in kept:
            return state.models[_name(int(kept["cluster"]))]
        return weights.mean(models, kept["blend"].tolist() if "blend" in kept else None)


def _name(cluster: int) -> str:
    return f"cluster-{cluster:03}"


def _layer(notes: Weights) -> str:
    return next(name.removeprefix(_LAYER) for name in notes if name.startswith(_LAYER))


def _partition(state: ServerState, replies: Sequence[Reply]) -> ServerState:
    """Return a state with the cluster of every client, and each cluster's mean direction for late clients."""
    layers = torch.stack([direction(reply.weights[_layer(state.notes)]) for reply in replies])
    labels = finch(layers) if len(replies) > 1 else torch.zeros(1, dtype=torch.long)
    centres = {
        f"{_CENTRE}{number:03}": layers[labels == number].mean(dim=0)
        for number in range(int(labels.max()) + 1)
    }
    clusters = {reply.client: {"cluster": label} for reply, label in zip(replies, labels, strict=True)}
    return ServerState({}, {**state.notes, **centres}, clusters)


def _updated(state: ServerState, replies: Sequence[Reply]) -> dict[ClientId, Weights]:
    """Return what is kept about each client, with the blends of the replies."""
    replied = {
        reply.client: {"cluster": _cluster(state, reply), "blend": _clean(reply.reports["start"]["blend"])}
        for reply in replies
    }
    return {**state.per_client, **replied}


def _cluster(state: ServerState, reply: Reply) -> Tensor:
    """Return a client's cluster; one that missed the first round joins the nearest."""
    kept = state.about(reply.client)
    if "cluster" in kept:
        return kept["cluster"]
    centres = torch.stack([state.notes[name] for name in sorted(state.notes) if name.startswith(_CENTRE)])
    return F.cosine_similarity(direction(reply.weights[_layer(state.notes)])[None], centres).argmax()


def _clean(shares: Tensor) -> Tensor:
    """Return shares that are not negative and sum to 1, whatever a client reports."""
    positive = shares.double().clamp_min(0)
    equal = torch.full_like(positive, 1 / len(positive))
    return positive / positive.sum() if positive.sum() > 0 else equal
