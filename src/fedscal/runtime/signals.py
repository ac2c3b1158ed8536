"""The label-free signals: what the predictions of a model say of it where nobody knows the classes.

This table is their only list: records, selection, answers of sites, reports and the option ``select`` follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedscal.core.lazy import torch
from fedscal.core.types import Prediction
from fedscal.losses import soft_neighbourhood_density


@dataclass(frozen=True)
class Signal:
    """A number between 0 and a limit that tells good predictions from bad ones.

    Attributes:
        sign: 1 if more is better, -1 if less is.
        compute: from predictions to the number.
        limit: the highest number, given how many classes and how many images there are.
        caption: what it is, for the reader of a report.
    """

    sign: float
    compute: Callable[[Prediction], float]
    limit: Callable[[int, int], float]
    caption: str


def entropy(prediction: Prediction) -> float:
    """Mean H(p): low where predictions are sure."""
    return float(prediction.entropies.mean())


def infomax(prediction: Prediction) -> float:
    """IM = H(mean p) - mean H(p): high where predictions are sure and classes balanced."""
    mean = prediction.probabilities.mean(dim=0)
    return float(-torch.xlogy(mean, mean).sum() - prediction.entropies.mean())


def _log_classes(classes: int, images: int) -> float:
    return math.log(classes)


def _log_images(classes: int, images: int) -> float:
    """SND is an entropy over the other images."""
    return math.log(images)


SIGNALS: Mapping[str, Signal] = {
    "entropy": Signal(
        -1.0, entropy, _log_classes, "the mean uncertainty of the predictions (lower is surer)"
    ),
    "infomax": Signal(1.0, infomax, _log_classes, "rewards sure predictions spread over many classes"),
    "snd": Signal(
        1.0,
        lambda prediction: soft_neighbourhood_density(prediction.probabilities),
        _log_images,
        "soft neighbourhood density, rewards features that form dense groups",
    ),
}
