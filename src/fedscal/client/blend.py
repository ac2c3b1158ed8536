"""FedWCA's client-specific blend of cluster models. A reconstruction (see ``two_phase.py``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedscal import losses as functional
from fedscal.client.start import SERVER
from fedscal.core import weights
from fedscal.core.lazy import F, torch
from fedscal.core.types import Groups, Prediction, Weights

if TYPE_CHECKING:
    from torch import Tensor


def closeness(prediction: Prediction) -> Tensor:
    """Return the mean cosine of a feature with the prototype of its pseudo-label, mapped to [0, 1]."""
    labels = functional.prototype_labels(prediction.features, prediction.probabilities)
    member = F.one_hot(labels, prediction.logits.shape[1]).to(prediction.features.dtype)
    prototypes = functional.soft_prototypes(prediction.features, member)
    return (1 + F.cosine_similarity(prediction.features, prototypes[labels]).mean()) / 2


def shares(densities: Tensor, closenesses: Tensor) -> Tensor:
    """Return a share for each model, proportional to density times closeness; equal if all are 0."""
    scores = (densities * closenesses).clamp_min(0)
    equal = torch.full_like(scores, 1 / len(scores))
    return torch.where(scores.sum() > 0, scores / scores.sum().clamp_min(1e-12), equal)


@dataclass(frozen=True)
class Blend:
    """Start from the mean of the cluster models, each weighted by how well it suits the client's images.

    The weight of a model is the soft neighbourhood density of its predictions times the closeness of its
    features to their prototypes; one pass over the images for each model. The server is told the weights.
    """

    def begin(self, models: Groups, sweep: Callable[[Weights], Prediction]) -> tuple[Weights, Weights]:
        """Return the blend and its shares; a package with one model is taken as it is."""
        if SERVER in models:
            return models[SERVER], {}
        seen = [sweep(models[name]) for name in sorted(models)]
        densities = [functional.soft_neighbourhood_density(p.probabilities) for p in seen]
        found = shares(torch.tensor(densities), torch.stack([closeness(p) for p in seen]))
        return weights.mean([models[name] for name in sorted(models)], found.tolist()), {"blend": found}
