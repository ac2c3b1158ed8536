r"""The class shares of a site, estimated from a model's answers to its unlabelled images.

Sites see other classes than the source did, and rarely all of them alike. Whoever knows the shares pi of
the classes answers better: p(y | x) is proportional to p_model(y | x) pi_y / a_y, with a the shares in the
model's training. Expectation-maximisation finds them without labels: pi <- the mean of p(y | x) over the
images (Saerens, Latinne, Decaestecker: Adjusting the Outputs of a Classifier to New a Priori Probabilities.
Neural Computation 2002).

Answers that are wrong in the same way look like unlike classes, too. Such mistakes are milder than what sites
with unlike classes show, unless the model knows next to nothing. So shares are trusted as far as the answers
are far from equally spread, and not at all if the model is sure of hardly any. docs/methods.md has the
measurements behind the numbers below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_CONFIDENCE = 0.7
"""Logits are scaled until the mean confidence is this: models differ in how sure they are."""
_EQUAL, _UNLIKE = 0.82, 0.67
"""Effective share of the classes among the answers: equal from the first on, unlike up to the second."""
_UNSURE, _SURE = 0.2, 0.35
"""A model whose logits must be divided by less than the first knows too little; by the second, enough."""
_PSEUDO_IMAGES = 0.01
"""The part of all shares that is as before whatever the images say: no class is impossible."""
_STEPS, _CLOSE = 200, 1e-6
_HALVINGS = 40
_MOST = 5.0
"""A rare class counts at most so many times in a balanced sample: its few images may be mistakes."""


@dataclass(frozen=True)
class ClassShares:
    """Estimated class shares of a site, and how far they are trusted.

    Attributes:
        shares: the estimate (J,), in float64.
        assumed: the class shares (J,) of the images that the model was trained on.
        trust: from 0, the site's classes count as equal, to 1.
        temperature: what the logits were divided by.
    """

    shares: Tensor
    assumed: Tensor
    trust: float
    temperature: float

    @property
    def expected(self) -> Tensor:
        """The shares to reckon with (J,): between equal ones and the estimate."""
        return (1 - self.trust) / len(self.shares) + self.trust * self.shares

    @property
    def shift(self) -> Tensor:
        """What is added to the logits (J,)."""
        return self.temperature * self.trust * (self.shares / self.assumed).log()

    def balanced_rows(self, logits: Tensor) -> Tensor:
        """Return n rows of the n images in which every class counts as much as the others, as far as trusted.

        Images of rare classes stand there several times, some of frequent ones not at all.
        """
        answers = torch.softmax((logits.double() + self.shift) / self.temperature, dim=1)
        rarity = (1 / (len(self.shares) * self.shares)).clamp(max=_MOST) ** self.trust
        upto = (answers @ rarity).cumsum(dim=0)
        places = (torch.arange(len(logits), dtype=torch.float64) + 0.5) * upto[-1] / len(logits)
        return torch.searchsorted(upto, places).clamp(max=len(logits) - 1)


def estimate_shares(logits: Tensor, assumed: Tensor | None = None) -> ClassShares:
    """Estimate the class shares of n images from a model's logits (n, J).

    ``assumed`` are the class shares (J,) of the images that the model was trained on; None: all alike.
    """
    logits, classes = logits.double(), logits.shape[1]
    equal = torch.full((classes,), 1 / classes, dtype=torch.float64)
    assumed = equal if assumed is None else torch.lerp(assumed.double(), equal, _PSEUDO_IMAGES)
    temperature = _temperature(logits)
    shares = _expectation_maximisation(torch.softmax(logits / temperature, dim=1), assumed)
    trust = _unlikeness(logits) * ramp(temperature, _UNSURE, _SURE)
    return ClassShares(shares, assumed, trust, temperature)


def _temperature(logits: Tensor) -> float:
    """Return what logits must be divided by for the mean confidence that is wanted."""
    low, high = 1e-3, 1e3
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        sure = float(torch.softmax(logits / middle, dim=1).amax(dim=1).mean())
        low, high = (middle, high) if sure > _CONFIDENCE else (low, middle)
    return middle


def _expectation_maximisation(probabilities: Tensor, assumed: Tensor) -> Tensor:
    shares = assumed
    for _ in range(_STEPS):
        weighted = probabilities * (shares / assumed)
        before, mean = shares, (weighted / weighted.sum(dim=1, keepdim=True)).mean(dim=0)
        shares = torch.lerp(mean, assumed, _PSEUDO_IMAGES)
        if float((shares - before).abs().max()) < _CLOSE:
            break
    return shares


def _unlikeness(logits: Tensor) -> float:
    """Return how far the answers are from equally spread: 0 if the classes count as equal, 1 if as unlike.

    Few images are spread unequally by chance: the entropy of n answers is too low by (J - 1) / 2n on average
    (Miller 1955).
    """
    images, classes = logits.shape
    counted = torch.bincount(logits.argmax(dim=1), minlength=classes).double() / images
    entropy = float(-torch.xlogy(counted, counted).sum()) + (classes - 1) / (2 * images)
    return 1 - ramp(math.exp(entropy) / classes, _UNLIKE, _EQUAL)


def ramp(value: float, low: float, high: float) -> float:
    """Return 0 up to ``low``, 1 from ``high`` on, and in between what lies in between."""
    return min(1.0, max(0.0, (value - low) / (high - low)))
