"""Aggregation: how the replies of a round become one model, by averaging or robustly.

McMahan et al.: Communication-Efficient Learning of Deep Networks. AISTATS 2017 (uniform, size).
Yin, Chen, Kannan, Bartlett: Byzantine-Robust Distributed Learning. ICML 2018 (median, trimmed mean).
Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries. NeurIPS 2017 (Krum).

All are functions of models in client order, in float64. Integer buffers take the maximum in an average and
the lower median in a robust aggregation: there, the largest counter would be the attacker's to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median as middle
from typing import TYPE_CHECKING, Literal

from fedscal.core import weights
from fedscal.core.layout import in_shape
from fedscal.core.lazy import torch
from fedscal.core.options import option
from fedscal.core.types import Reply, Weights
from fedscal.server.statistics import measures, steps

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 2**20
"""How many numbers of all models together are sorted at a time."""


@dataclass(frozen=True)
class Aggregation:
    r"""w = sum_k s_k w_k with s_k = 1/Q or n_k / sum n, or a robust aggregation in its place."""

    aggregation: Literal["uniform", "size", "median", "trimmed-mean", "krum"] = option(
        "uniform", "average of the replies, alike or by number of images, or a robust aggregation"
    )
    attackers: int = option(
        1, "bad clients per round that trimmed-mean and krum withstand", low=1, high=10_000, later=True
    )

    def __call__(self, replies: Sequence[Reply], server: Weights) -> Weights:
        """Return the aggregate of the replies to ``server``."""
        models = [reply.weights for reply in replies]
        match self.aggregation:
            case "median":
                return median(models)
            case "trimmed-mean":
                return trimmed_mean(models, self.attackers)
            case "krum":
                return krum(models, server, self.attackers)
            case "size":
                return by_images(replies)
        return weights.mean(models)

    @property
    def least_replies(self) -> int:
        """How many replies a robust aggregation needs to outvote its attackers."""
        few = {"median": 3, "trimmed-mean": 2 * self.attackers + 1, "krum": 2 * self.attackers + 3}
        return few.get(self.aggregation, 1)


def by_images(replies: Sequence[Reply]) -> Weights:
    """Average replies by their numbers of images."""
    total = sum(reply.examples for reply in replies)
    return weights.mean([reply.weights for reply in replies], [reply.examples / total for reply in replies])


def median(models: Sequence[Weights]) -> dict[str, Tensor]:
    """Return the median of every coordinate; of an even number, the mean of the two in the middle."""
    return trimmed_mean(models, (len(models) - 1) // 2)


def trimmed_mean(models: Sequence[Weights], cut: int) -> dict[str, Tensor]:
    """Return the mean of every coordinate without its ``cut`` smallest and ``cut`` largest values."""

    def inner(stacked: Tensor) -> Tensor:
        if not stacked.is_floating_point():
            return stacked.median(dim=0).values
        kept = stacked.double().sort(dim=0).values[cut : len(stacked) - cut]
        return kept.mean(dim=0).to(stacked.dtype)

    return {name: _by_block(models, name, tensor.shape, inner) for name, tensor in models[0].items()}


def _by_block(
    models: Sequence[Weights], name: str, shape: torch.Size, of: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return a function of every coordinate's values, a block of coordinates at a time."""
    size = max(1, _BLOCK // len(models))
    blocks = [
        of(torch.stack([weights.part(model, name, start, start + size) for model in models]))
        for start in range(0, shape.numel(), size)
    ]
    return in_shape(torch.cat(blocks or [weights.part(models[0], name, 0, 0)]), shape)


def krum(models: Sequence[Weights], server: Weights, attackers: int) -> dict[str, Tensor]:
    """Return the model that is nearest to its n - f - 2 nearest others; the first of equals.

    The square of a distance is the sum of the squares in parameters and in statistics, each in units of the
    round's median step.
    """
    count = len(models)
    squares = torch.zeros(count, count, dtype=torch.float64)
    for measure in measures(server).values():
        unit = middle(steps(models, server, measure)) or 1.0
        for i in range(count):
            model = dict(models[i])  # it is compared with many, and may be on disk
            for j in range(i):
                squares[i, j] += (measure(model, models[j]) / unit) ** 2
    squares += squares.T.clone()
    nearest = squares.sort(dim=1).values[:, 1 : count - attackers - 1]  # the nearest of all is itself
    return dict(models[int(nearest.sum(dim=1).argmin())])
