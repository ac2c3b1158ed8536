"""Linear classifiers of features, and how far two of them disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscal.core.lazy import torch
from fedscal.core.types import Weights

if TYPE_CHECKING:
    from torch import Tensor


def probabilities(classifier: Weights, features: Tensor) -> Tensor:
    """Return softmax(W g + b), shape (n, J), for a classifier of ``weight`` W and ``bias`` b."""
    return torch.softmax(features @ classifier["weight"].T + classifier["bias"], dim=1)


def discrepancy(p: Tensor, q: Tensor) -> Tensor:
    r"""1/n sum_i sum_j |p_ij - q_ij|, from 0 where two classifiers agree to 2."""
    return (p - q).abs().sum(dim=1).mean()
