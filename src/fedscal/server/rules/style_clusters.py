"""LADD: clients are clustered by the style of their images; some layers are averaged in clusters only.

Shenaj, Fanì, Toldo, Caldarola, Tavera, Michieli, Ciccone, Zanuttigh, Caputo: Learning Across Domains and
Devices: Style-Driven Source-Free Domain Adaptation in Clustered Federated Learning. WACV 2023. The
original segments street scenes; this is its reading for classification (docs/methods.md).

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
from fedscal.core.types import ClientId, Groups, Reply, Weights
from fedscal.server.rule import Briefing, ServerRule, ServerState

if TYPE_CHECKING:
    from torch import Tensor

_MOST_CLUSTERS = 10


@dataclass(frozen=True)
class StyleClusters(ServerRule):
    """k-means on the clients' styles, k by the silhouette, once before the first round.

    Late in the run each cluster's teacher is the running mean of its models (stochastic weight
    averaging); before that, clients take the received model as their teacher.
    """

    least_clients: ClassVar[int] = 3
    cluster_layers: Literal["bottleneck", "norms", "all"] = option(
        "bottleneck", "layers that are averaged inside the style cluster only"
    )
    swa_start: float = option(
        0.5, "share of the rounds after which teachers are averages of models", low=0, high=1
    )

    def init(self, briefing: Briefing) -> ServerState:
        """Cluster the clients by style; every cluster starts from the source model."""
        labels = _clusters(briefing.profiles)
        numbers = sorted(set(labels.values()))
        models = {_name(number): briefing.source for number in numbers}
        counters = {"round": torch.tensor(0), "averaged": torch.tensor(0)}
        start = {"swa_after": torch.tensor(int(self.swa_start * briefing.rounds))}
        per_client = {client: {"cluster": torch.tensor(label)} for client, label in labels.items()}
        return ServerState({**models, "source": briefing.source}, {**counters, **start}, per_client)

    def send(self, state: ServerState, client: ClientId) -> Groups:
        """Send the cluster's model, the source model to distil from, and late the cluster's teacher."""
        sent = {"server": self.deployed(state, client), "source": state.models["source"]}
        teacher = f"teacher-{_number(state, client):03}"
        return sent | ({"teacher": state.models[teacher]} if teacher in state.models else {})

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Average the chosen layers inside the clusters, the others over all replies."""
        shared = weights.mean([reply.weights for reply in replies])
        models = dict(state.models)
        for name in [name for name in models if name.startswith("cluster-")]:
            mine = [r.weights for r in replies if _name(_number(state, r.client)) == name]
            own = weights.mean(mine) if mine else models[name]
            models[name] = {n: own[n] if self._apart(n, shared) else shared[n] for n in shared}
        return _with_teachers(replace(state, models=models))

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Return the model of the client's cluster."""
        return state.models[_name(_number(state, client))]

    def _apart(self, name: str, model: Weights) -> bool:
        """Whether a tensor belongs to the layers that are averaged inside clusters only."""
        if self.cluster_layers == "norms":
            return f"{name.rpartition('.')[0]}.running_mean" in model
        return self.cluster_layers == "all" or name.startswith("bottleneck.")


def _name(number: int) -> str:
    return f"cluster-{number:03}"


def _number(state: ServerState, client: ClientId) -> int:
    """Return a client's cluster; one without a usable style is in the first."""
    return int(state.about(client).get("cluster", 0))


def _clusters(profiles: Mapping[ClientId, Weights]) -> dict[ClientId, int]:
    """Cluster the styles; one that is not finite or has another shape than the first is left out."""
    styles = {client: profile["amplitude"].double().flatten() for client, profile in sorted(profiles.items())}
    size = next((len(style) for style in styles.values()), 0)
    sound = {c: style for c, style in styles.items() if len(style) == size and style.isfinite().all()}
    if len(sound) < StyleClusters.least_clients:
        raise TooFewClients(f"ladd needs the style of at least three clients; {len(sound)} sent theirs.")
    labels = by_silhouette(torch.stack(list(sound.values())), min(len(sound) - 1, _MOST_CLUSTERS)).tolist()
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return {client: numbers[label] for client, label in zip(sound, labels, strict=True)}


def _with_teachers(state: ServerState) -> ServerState:
    """Count the round, and move the teachers once their averaging has begun."""
    notes: dict[str, Tensor] = {**state.notes, "round": state.notes["round"] + 1}
    if notes["round"] <= notes["swa_after"]:
        return replace(state, notes=notes)
    notes["averaged"] = notes["averaged"] + 1
    models, step = dict(state.models), 1 / float(notes["averaged"])
    for name in [name for name in models if name.startswith("cluster-")]:
        teacher = name.replace("cluster-", "teacher-")
        before = models.get(teacher, models[name])
        models[teacher] = weights.mean([before, models[name]], [1 - step, step])
    return replace(state, models=models, notes=notes)
