"""LADD: clients are clustered by the style of their images; some layers are averaged in clusters only.

Shenaj, Fanì, Toldo, Caldarola, Tavera, Michieli, Ciccone, Zanuttigh, Caputo: Learning Across Domains and
Devices: Style-Driven Source-Free Domain Adaptation in Clustered Federated Learning. WACV 2023. The
original segments street scenes; this is its published code read for classification (docs/methods.md).

Beyond its weights a client reveals its style once: the mean low-frequency amplitude of its images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from fedscal.core import weights
from fedscal.core.clusters import by_silhouette
from fedscal.core.errors import TooFewClients
from fedscal.core.lazy import torch
from fedscal.core.options import option
from fedscal.core.rng import stream
from fedscal.core.types import ClientId, Groups, Reply, Weights
from fedscal.server.aggregation import by_images
from fedscal.server.rule import Briefing, ServerRule, ServerState

if TYPE_CHECKING:
    from torch import Tensor

_FEWEST_CLUSTERS, _MOST_CLUSTERS = 4, 19
_GLOBAL = "global"
_CLASSIFIER = ("bottleneck.", "head.")
"""What follows the backbone, as the original's segmentation head does."""


@dataclass(frozen=True)
class StyleClusters(ServerRule):
    """k-means on the clients' styles, k by the silhouette, once before the first round.

    Late in the run each cluster's teacher is the running mean of its models (stochastic weight
    averaging); before that, clients take the received model as their teacher.
    """

    least_clients: ClassVar[int] = 3
    cluster_layers: Literal["classifier", "norms", "all"] = option(
        "classifier", "layers that are averaged inside the style cluster only"
    )
    swa_start: float = option(
        0.27, "share of the rounds after which teachers are averages of models", low=0, high=1
    )

    def init(self, briefing: Briefing) -> ServerState:
        """Cluster the clients by style; every cluster starts from the source model."""
        labels = _clusters(briefing.profiles, stream(briefing.seed, "style-clusters"))
        names = [_name(number) for number in sorted(set(labels.values()))]
        models = dict.fromkeys(["source", _GLOBAL, *names], briefing.source)
        counters = {"round": torch.tensor(0), "averaged": torch.tensor(0)}
        start = {"swa_after": torch.tensor(int(self.swa_start * briefing.rounds))}
        per_client = {client: {"cluster": torch.tensor(label)} for client, label in labels.items()}
        return ServerState(models, {**counters, **start}, per_client)

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send the cluster's model, the source model to distil from, and late the cluster's teacher."""
        sent = {"server": self.deployed(state, client), "source": state.models["source"]}
        teacher = f"teacher-{_number(state, client):03}"
        return sent | ({"teacher": state.models[teacher]} if teacher in state.models else {})

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Average the chosen layers inside the clusters, the others over all replies.

        A cluster without a reply takes its layers from the last global model, in which every cluster that
        replied counts alike.
        """
        members: dict[str, list[Reply]] = {name: [] for name in _cluster_names(state)}
        for reply in replies:
            members[_name(_number(state, reply.client))].append(reply)
        shared = by_images(replies)
        own = {name: by_images(mine) for name, mine in members.items() if mine}
        apart = {name: own.get(name, state.models[_GLOBAL]) for name in members}
        apart[_GLOBAL] = weights.mean(list(own.values()))
        merged = {name: self._joined(layers, shared) for name, layers in apart.items()}
        return _with_teachers(replace(state, models={**state.models, **merged}))

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Return the model of the client's cluster."""
        return state.models[_name(_number(state, client))]

    def _joined(self, apart: Weights, shared: Weights) -> Weights:
        return {name: apart[name] if self._in_cluster(name, shared) else shared[name] for name in shared}

    def _in_cluster(self, name: str, model: Weights) -> bool:
        """Whether a tensor belongs to the layers that are averaged inside clusters only."""
        if self.cluster_layers == "norms":
            return f"{name.rpartition('.')[0]}.running_mean" in model
        return self.cluster_layers == "all" or name.startswith(_CLASSIFIER)


def _name(number: int) -> str:
    return f"cluster-{number:03}"


def _cluster_names(state: ServerState) -> list[str]:
    return sorted(name for name in state.models if name.startswith("cluster-"))


def _number(state: ServerState, client: ClientId) -> int:
    """Return a client's cluster; one without a usable style is in the first."""
    return int(state.about(client).get("cluster", 0))


def _clusters(profiles: Mapping[ClientId, Weights], generator: torch.Generator) -> dict[ClientId, int]:
    """Cluster the styles; one that is not finite or has another shape than the first is left out."""
    styles = {client: profile["amplitude"].double().flatten() for client, profile in sorted(profiles.items())}
    size = next((len(style) for style in styles.values()), 0)
    sound = {c: style for c, style in styles.items() if len(style) == size and style.isfinite().all()}
    if len(sound) < StyleClusters.least_clients:
        raise TooFewClients(f"ladd needs the style of at least three clients; {len(sound)} sent theirs.")
    # A silhouette needs a cluster of two: with few clients, fewer clusters than the original tries.
    least, most = (min(count, len(sound) - 1) for count in (_FEWEST_CLUSTERS, _MOST_CLUSTERS))
    labels = by_silhouette(torch.stack(list(sound.values())), range(least, most + 1), generator).tolist()
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return {client: numbers[label] for client, label in zip(sound, labels, strict=True)}


def _with_teachers(state: ServerState) -> ServerState:
    """Count the round, and move the teachers once their averaging has begun."""
    notes: dict[str, Tensor] = {**state.notes, "round": state.notes["round"] + 1}
    if notes["round"] < notes["swa_after"]:
        return replace(state, notes=notes)
    notes["averaged"] = notes["averaged"] + 1
    models, step = dict(state.models), 1 / float(notes["averaged"])
    for name in _cluster_names(state):
        teacher = name.replace("cluster-", "teacher-")
        before = models.get(teacher, models[name])
        models[teacher] = weights.mean([before, models[name]], [1 - step, step])
    return replace(state, models=models, notes=notes)
