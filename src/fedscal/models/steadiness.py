"""How steady a model's answers are, and how much of the source model a site keeps in the learned one.

Whether a model is right nobody can tell without labels. But where learning found the site's classes, strong
views of an image are answered like the image itself far more often than before; where it only moved the
borders between classes that the source model knew well, they are not. docs/methods.md has the measurements
behind the numbers below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from fedscal.core.types import Images, Prediction
from fedscal.models.network import predict
from fedscal.models.shares import ramp

if TYPE_CHECKING:
    from fedscal.models.network import Network

_VIEWS = 2
"""Strong views of each image that are asked about."""
_LITTLE, _MUCH = 1.25, 2.0
"""How many times as steady the learned model's answers are where it should hardly count, and where alone."""


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
    views = [predict(network, images, strong).logits.argmax(dim=1) for _ in range(_VIEWS)]
    steady = sum(int((seen == answers).sum()) for seen in views)
    return (steady + 0.5) / (_VIEWS * len(answers) - steady + 0.5)


def kept_share(before: float, after: float, most: float) -> float:
    """Return the source model's share in what answers, given the odds of both models.

    >>> kept_share(before=3, after=6, most=0.9)
    0.0
    >>> kept_share(before=3, after=3, most=0.9)
    0.9
    """
    return most * (1 - ramp(math.log(after / before), math.log(_LITTLE), math.log(_MUCH)))
