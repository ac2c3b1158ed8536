"""Models of features: class-wise Gaussians, and linear classifiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscal.core.lazy import F, torch
from fedscal.core.types import Weights

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_VARIANCE = 1e-6


def class_gaussians(features: Tensor, labels: Tensor, classes: int) -> dict[str, Tensor]:
    r"""Fit a Gaussian with diagonal covariance to the features of every class.

    Returns:
        ``mean`` and ``variance`` of shape (J, d), and ``share`` n_j / n of shape (J,). A class without
        an image has share 0, mean 0 and variance 1.
    """
    member = F.one_hot(labels, classes).to(torch.float64)
    count = member.sum(dim=0)[:, None]
    mean = member.T @ features.double() / count.clamp_min(1)
    square = member.T @ (features.double() - mean[labels]).square() / count.clamp_min(1)
    variance = torch.where(count > 0, square.clamp_min(_LEAST_VARIANCE), torch.ones_like(square))
    return {
        "mean": mean.to(features.dtype),
        "variance": variance.to(features.dtype),
        "share": (count[:, 0] / len(labels)).to(features.dtype),
    }


def sample(gaussians: Weights, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a feature from the Gaussian of each label."""
    noise = torch.randn(len(labels), gaussians["mean"].shape[1], generator=generator)
    return gaussians["mean"][labels] + gaussians["variance"][labels].clamp_min(0).sqrt() * noise


def probabilities(classifier: Weights, features: Tensor) -> Tensor:
    """Return softmax(W g + b), shape (n, J), for a classifier of ``weight`` W and ``bias`` b."""
    return torch.softmax(features @ classifier["weight"].T + classifier["bias"], dim=1)


def discrepancy(p: Tensor, q: Tensor) -> Tensor:
    r"""1/n sum_i sum_j |p_ij - q_ij|, from 0 where two classifiers agree to 2."""
    return (p - q).abs().sum(dim=1).mean()
