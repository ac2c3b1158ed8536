"""What the source model and the delivered one answer to the clients' images: ``answers.json`` of a run.

Only a run whose images are on this machine has it. The page draws it; nothing trains with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

ANSWERS = "answers.json"
Kind = Literal["changed", "mistake", "doubtful"]


@dataclass(frozen=True, kw_only=True)
class Bins:
    """How often answers are right by how sure they are, in bins of equal width from 0 to 1.

    Attributes:
        images: the number of answers in each bin.
        confidence: their mean confidence; 0 in an empty bin.
        right: the share of them that is right; 0 in an empty bin.
    """

    images: Sequence[int]
    confidence: Sequence[float]
    right: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """What labels say about one model's answers in a domain.

    Attributes:
        confusion: images by true class (row) and answer (column).
        bins: calibration.
        calibration_error: the mean distance of confidence and accuracy over the bins, by images.
    """

    confusion: Sequence[Sequence[int]]
    bins: Bins
    calibration_error: float


@dataclass(frozen=True, kw_only=True)
class DomainAnswers:
    """The answers in one domain: of the source model as it came, and of the delivered one.

    The source model answers with its own statistics, the delivered one with those of the site where sites
    have their own.

    Attributes:
        changed: the number of images whose answer changed.
        predicted_before: how often the source model answers each class.
        predicted_after: how often the delivered model does.
        before: what labels say about the source model. None without labels, and in every domain where the
            matrices of all together had more than 400,000 numbers, as those of 345 classes in two domains.
        after: what they say about the delivered model; None likewise.
    """

    images: int
    changed: int
    predicted_before: Sequence[int]
    predicted_after: Sequence[int]
    before: Labelled | None = None
    after: Labelled | None = None


@dataclass(frozen=True, kw_only=True)
class Point:
    """An image's features in the plane, before and after; classes by their place in the list."""

    domain: str
    before: tuple[float, float]
    after: tuple[float, float]
    answer: int
    label: int | None = None


@dataclass(frozen=True, kw_only=True)
class Example:
    """An image that is worth a look: shown only if the user asked for images.

    Attributes:
        kind: its answer ``changed``, it is a sure ``mistake`` (labels know), or the answer is ``doubtful``.
        name: the image's file in the folder of its site, or its number in its domain.
        confidence: of the delivered model's answer.
        png: the image itself, small, base64.
    """

    kind: Kind
    domain: str
    client: str
    name: str
    before: str
    after: str
    confidence: float = math.nan
    label: str | None = None
    png: str


@dataclass(frozen=True, kw_only=True)
class Answers:
    """``answers.json``.

    Attributes:
        model_sha256: the run's ``weights_sha256`` when it was made; another one makes it out of date.
        round: the delivered model's round; 0 is the source model. Where ``delivery.unchanged`` names a site,
            the source model answers there.
        projection: how features came into the plane, such as ``t-SNE``; empty if there are no points.
    """

    classes: Sequence[str]
    model_sha256: str
    round: int
    domains: Mapping[str, DomainAnswers]
    projection: str = ""
    points: Sequence[Point] = ()
    examples: Sequence[Example] = ()
