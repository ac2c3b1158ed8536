"""How steady a model's answers are, and how much of the source model a site keeps in the learned one.

Whether a model is right nobody can tell without labels. But where learning found the site's classes, strong
views of an image are answered like the image itself far more often than before; where it only moved the
borders between classes that the source model knew well, they are not. And learning that changes more answers
than strong views change the source model's has run away, however steady it is. docs/methods.md has the
measurements behind the numbers below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fedscal.core import weights
from fedscal.core.types import Images, Prediction, Weights
from fedscal.models.network import predict
from fedscal.models.shares import ramp

if TYPE_CHECKING:
    from fedscal.models.network import Network

VIEWS = 2
"""Strong views of each image that are asked about."""
_LITTLE, _MUCH = 1.25, 2.0
"""How many times as steady the learned model's answers are where it should hardly count, and where alone."""
_RESTRAINED = (0.9, 1.0)
"""The learned model's answers that are the source model's, for one steady answer of that: likewise."""


@dataclass(frozen=True)
class Answers:
    """A model's answers to a site's images.

    Attributes:
        classes: the class that it predicts of each image (n,).
        odds: that it answers a strong view like the image, if it was asked.
    """

    classes: Tensor
    odds: float = math.nan


def steady_odds(
    network: Network, images: Images, strong: Callable[[Tensor], Tensor], prediction: Prediction
) -> float:
    """Return the odds that a strong view is answered like the image, by the model that the network holds.

    Args:
        network: holds the model.
        images: the site's images.
        strong: returns a strong view of each image.
        prediction: the model's answers to the images themselves.
    """
    answers = prediction.logits.argmax(dim=1)
    views = [predict(network, images, strong).logits.argmax(dim=1) for _ in range(VIEWS)]
    steady = sum(int((seen == answers).sum()) for seen in views)
    return (steady + 0.5) / (VIEWS * len(answers) - steady + 0.5)


def steady_answers(
    network: Network, images: Images, strong: Callable[[Tensor], Tensor], prediction: Prediction
) -> Answers:
    """Return a model's answers with their odds, see ``steady_odds``."""
    odds = steady_odds(network, images, strong, prediction)
    return Answers(prediction.logits.argmax(dim=1), odds)


def equal_share(answers: Tensor, others: Tensor) -> float:
    """Return the share of images that are answered alike."""
    return float((answers == others).double().mean())


def steadiness(odds: float) -> float:
    """Return the share of steady answers: of all strong views, those that are answered like their image."""
    return odds / (1 + odds)


def kept_share(before: float, after: float, equal: float, most: float) -> float:
    """Return the source model's share in what answers.

    Args:
        before: the odds of a steady answer of the source model.
        after: those of the learned one.
        equal: the share of images that both answer alike.
        most: the most that the source model counts.

    >>> kept_share(before=3, after=6, equal=0.75, most=0.9)
    0.0
    >>> kept_share(before=3, after=3, equal=0.75, most=0.9), kept_share(3, 9, equal=0.6, most=0.9)
    (0.9, 0.9)
    """
    steadier = ramp(math.log(after / before), math.log(_LITTLE), math.log(_MUCH))
    return most * (1 - min(steadier, ramp(equal / steadiness(before), *_RESTRAINED)))


def chosen_share(source: Answers, learned: Answers, most: float) -> float:
    """Return the source model's share in what answers at a site, as both models' answers there tell it."""
    equal = equal_share(learned.classes, source.classes)
    return kept_share(source.odds, learned.odds, equal, most)


def with_share(source: Weights, learned: Weights, share: float) -> Weights:
    """Return what answers at a site: the learned model with a share of the source model."""
    return weights.mean([source, learned], [share, 1 - share]) if share else learned
