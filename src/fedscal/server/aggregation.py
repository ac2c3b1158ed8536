"""Aggregation that bears some bad clients: median, trimmed mean, Krum.

Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning. ICML 2018 (median, trimmed mean).
Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries. NeurIPS 2017 (Krum).

Krum and the limit on a step see parameters and BatchNorm's statistics, each in units of its own.

All are functions of models in client order, in float64, like ``weights.mean``. Integer buffers take the
lower median: the largest counter would be the attacker's to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median as middle
from typing import TYPE_CHECKING

from fedscal.core import weights
from fedscal.core.lazy import torch
from fedscal.core.types import Weights
from fedscal.server import statistics

if TYPE_CHECKING:
    from torch import Tensor

Measure = Callable[[Weights, Weights], float]
"""How far two models are apart."""


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


def measures(server: Weights) -> dict[str, Measure]:
    """Return the two ways in which models are apart: in parameters, and in BatchNorm's statistics.

    They have no common unit. Each is used in units of the round's median step from the server's model,
    which is an honest client's as long as more than half of the clients are honest.
    """
    return {
        "parameters": weights.distance,
        "statistics": lambda a, b: statistics.distance(a, b, server),
    }


def relative_steps(models: Sequence[Weights], server: Weights) -> dict[str, list[float]]:
    """Return how far each model went from the server's, by measure, in units of the median of all.

    A measure in which most models did not move is left out: there is nothing to compare with.
    """
    found = {name: _steps(models, server, measure) for name, measure in measures(server).items()}
    return {
        name: [step / usual for step in steps] for name, steps in found.items() if (usual := middle(steps))
    }


def _steps(models: Sequence[Weights], server: Weights, measure: Measure) -> list[float]:
    return [measure(model, server) for model in models]


def krum(models: Sequence[Weights], server: Weights, attackers: int) -> dict[str, Tensor]:
    """Return the model that is nearest to its n - f - 2 nearest others; the first of equals.

    The square of a distance is the sum of the squares in parameters and in statistics.
    """
    count = len(models)
    squares = torch.zeros(count, count, dtype=torch.float64)
    for measure in measures(server).values():
        unit = middle(_steps(models, server, measure)) or 1.0
        for i in range(count):
            for j in range(i):
                squares[i, j] += (measure(models[i], models[j]) / unit) ** 2
    squares += squares.T.clone()
    nearest = squares.sort(dim=1).values[:, 1 : count - attackers - 1]  # the nearest of all is itself
    return dict(models[int(nearest.sum(dim=1).argmin())])
