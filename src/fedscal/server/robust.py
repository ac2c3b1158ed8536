"""Aggregation that bears some bad clients: median, trimmed mean, Krum.

Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning. ICML 2018 (median, trimmed mean).
Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries. NeurIPS 2017 (Krum).

All are functions of models in client order, in float64, like ``weights.mean``. Integer buffers take the
lower median: the largest counter would be the attacker's to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedscal import weights
from fedscal.types import Weights


def median(models: Sequence[Weights]) -> dict[str, Tensor]:
    """Return the median of every coordinate; of an even number, the mean of the two in the middle."""
    return trimmed_mean(models, (len(models) - 1) // 2)


def trimmed_mean(models: Sequence[Weights], cut: int) -> dict[str, Tensor]:
    """Return the mean of every coordinate without its ``cut`` smallest and ``cut`` largest values."""

    def inner(stacked: Tensor) -> Tensor:
        kept = stacked.double().sort(dim=0).values[cut : len(stacked) - cut]
        return kept.mean(dim=0).to(stacked.dtype)

    return _by_coordinate(models, inner)


def _by_coordinate(models: Sequence[Weights], floats: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    stacks = {name: torch.stack([model[name] for model in models]) for name in models[0]}
    return {
        name: floats(stack) if stack.is_floating_point() else stack.median(dim=0).values
        for name, stack in stacks.items()
    }


def krum(models: Sequence[Weights], attackers: int) -> dict[str, Tensor]:
    """Return the model that is nearest to its n - f - 2 nearest others; the first of equals."""
    count = len(models)
    squares = torch.zeros(count, count, dtype=torch.float64)
    for i in range(count):
        for j in range(i):
            squares[i, j] = squares[j, i] = weights.distance(models[i], models[j]) ** 2
    nearest = squares.sort(dim=1).values[:, 1 : count - attackers - 1]  # the nearest of all is itself
    return dict(models[int(nearest.sum(dim=1).argmin())])
