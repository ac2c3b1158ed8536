r"""How far apart models are, in parameters and in BatchNorm's running statistics.

A distance of weights means nothing to statistics: a variance of 1e6 is usual in one layer and ruin in
another. The mean m and the variance v of a channel are those of a Gaussian, and the Fisher information
measures a step of it in units of its own: ds^2 = dm^2 / v + (d ln v)^2 / 2. So a mean counts in standard
deviations of the server's model and a variance on a logarithmic scale. As BatchNorm does, v is taken with
1e-5 added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from fedscal.core import weights
from fedscal.core.layout import COUNTER, Layout, numbers_in
from fedscal.core.types import Weights

if TYPE_CHECKING:
    from torch import Tensor

_EPSILON = 1e-5
_MEAN, _VARIANCE = "running_mean", "running_var"
_PASSES = 16
"""More passes of an image through one layer than any objective makes in a local epoch."""
Measure = Callable[[Weights, Weights], float]
"""How far two models are apart."""


def measures(server: Weights) -> dict[str, Measure]:
    """Return the two ways in which models are apart: in parameters, and in BatchNorm's statistics.

    They have no common unit. Each is used in units of the round's median step from the server's model,
    which is an honest client's as long as more than half of the clients are honest.
    """
    return {"parameters": weights.distance, "statistics": lambda a, b: distance(a, b, server)}


def steps(models: Sequence[Weights], server: Weights, measure: Measure) -> list[float]:
    """Return how far each model is from the server's."""
    return [measure(model, server) for model in models]


def relative_steps(models: Sequence[Weights], server: Weights) -> dict[str, list[float]]:
    """Return how far each model is from the server's, by measure, in units of the median of all.

    A measure in which most models did not move is left out: there is nothing to compare with.
    """
    absolute = {name: steps(models, server, measure) for name, measure in measures(server).items()}
    return {
        name: [step / usual for step in each] for name, each in absolute.items() if (usual := median(each))
    }


def impossible(model: Weights, sent: Sequence[Weights], images: int, epochs: int) -> str | None:
    """Return which statistic no training from the models that were sent can have produced, if there is one.

    Args:
        model: a client's model.
        sent: the models that it was sent.
        images: on how many it trained.
        epochs: for how many local epochs.
    """
    counted = _PASSES * images * max(1, epochs)  # a batch holds at least one image
    layout = Layout.of(model)
    for stretch in layout.stretches.get(_VARIANCE, ()):
        if len(numbers := numbers_in(model, stretch)) and (least := numbers.min(0)).values < 0:
            return f"the variance '{layout.name_at(stretch, int(least.indices))}' is negative"
    for stretch in layout.stretches.get(COUNTER, ()):
        counts, *known = (numbers_in(each, stretch).tolist() for each in (model, *sent))
        for number, (count, *before) in enumerate(zip(counts, *known, strict=True)):
            if not 0 <= count <= max(before) + counted:
                name = layout.name_at(stretch, number)
                return f"the counter '{name}' is {count:,}, which it cannot have counted"
    return None


def distance(a: Weights, b: Weights, unit: Weights) -> float:
    """Return how far the BatchNorm statistics of two models are apart, in units of those of a third."""
    squares = (
        _step(a, b, unit, name).square().sum().item()
        for name in sorted(unit)  # the order in which tensors arrive must not move the last bit
        if name.rpartition(".")[2] in (_MEAN, _VARIANCE)
    )
    return float(sum(squares) ** 0.5)


def _step(a: Weights, b: Weights, unit: Weights, name: str) -> Tensor:
    if name.endswith(_VARIANCE):
        return (_as_divided_by(a[name]).log() - _as_divided_by(b[name]).log()) / 2**0.5
    step = a[name].double() - b[name].double()
    spread = unit.get(name.removesuffix(_MEAN) + _VARIANCE)
    return step if spread is None else step / _as_divided_by(spread).sqrt()


def _as_divided_by(variance: Tensor) -> Tensor:
    return variance.double() + _EPSILON
