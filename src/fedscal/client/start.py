"""Where a client starts its round: the one model that it received, or its blend of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedscal import losses
from fedscal.core import weights
from fedscal.core.lazy import F, torch
from fedscal.core.types import Groups, Prediction, Weights

if TYPE_CHECKING:
    from torch import Tensor

SERVER = "server"
"""The name of the model to start from, in a package that holds one."""


class Start(Protocol):
    """Turns the models of a package into the weights w^r that a client starts from."""

    def begin(self, models: Groups, sweep: Callable[[Weights], Prediction]) -> tuple[Weights, Weights]:
        """Return the starting weights, and what is reported to the server about the choice.

        Args:
            models: the package's models by name.
            sweep: makes a model's evaluation pass over the client's whole data.
        """
        ...


@dataclass(frozen=True)
class Received:
    """Start from the server's model as it is; nothing is reported."""

    def begin(self, models: Groups, sweep: Callable[[Weights], Prediction]) -> tuple[Weights, Weights]:
        """Return the server's model."""
        return models[SERVER], {}


@dataclass(frozen=True)
class Blend:
    """FedWCA's client-specific blend of cluster models. A reconstruction (see ``terms/two_phase.py``).

    The share of a model is proportional to the soft neighbourhood density of its predictions times the
    closeness of its features to their prototypes; one pass over the images for each model. The shares are
    reported to the server.
    """

    def begin(self, models: Groups, sweep: Callable[[Weights], Prediction]) -> tuple[Weights, Weights]:
        """Return the blend and its shares; a package with one model is taken as it is."""
        if SERVER in models:
            return models[SERVER], {}
        predictions = [sweep(models[name]) for name in sorted(models)]
        densities = [losses.soft_neighbourhood_density(p.probabilities) for p in predictions]
        blend = shares(torch.tensor(densities), torch.stack([closeness(p) for p in predictions]))
        return weights.mean([models[name] for name in sorted(models)], blend.tolist()), {"blend": blend}


def closeness(prediction: Prediction) -> Tensor:
    """Return the mean cosine of a feature with the prototype of its pseudo-label, mapped to [0, 1]."""
    labels = losses.prototype_labels(prediction.features, prediction.probabilities)
    member = F.one_hot(labels, prediction.logits.shape[1]).to(prediction.features.dtype)
    prototypes = losses.soft_prototypes(prediction.features, member)
    return (1 + F.cosine_similarity(prediction.features, prototypes[labels]).mean()) / 2


def shares(densities: Tensor, closenesses: Tensor) -> Tensor:
    """Return a share for each model, proportional to density times closeness; equal if all are 0."""
    scores = (densities * closenesses).clamp_min(0)
    equal = torch.full_like(scores, 1 / len(scores))
    return torch.where(scores.sum() > 0, scores / scores.sum().clamp_min(1e-12), equal)
