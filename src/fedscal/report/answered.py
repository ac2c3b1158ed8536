"""The answers of a run, domain by domain and over all of them: what the charts and tables are made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedscal.experiment.answers import Answers, Bins, DomainAnswers, Labelled

ALL = "all domains"
"""The choice that is not one domain."""
_MOST_CHOICES = 40
"""With more domains than that, only all of them together are shown."""


def consistent(answers: Answers) -> bool:
    """Whether every part of the answers is about the same classes: a file may say anything."""
    classes = len(answers.classes)
    points = [place for point in answers.points for place in (point.answer, point.label or 0)]
    return (
        bool(classes and answers.domains)
        and all(_fits(domain, classes) for domain in answers.domains.values())
        and all(0 <= place < classes for place in points)
    )


def _fits(domain: DomainAnswers, classes: int) -> bool:
    counted = all(len(counts) == classes for counts in (domain.predicted_before, domain.predicted_after))
    return counted and all(_square(one, classes) for one in (domain.before, domain.after) if one)


def _square(labelled: Labelled, classes: int) -> bool:
    bins, rows = labelled.bins, labelled.confusion
    even = len(bins.images) == len(bins.confidence) == len(bins.right)
    return even and len(rows) == classes and all(len(row) == classes for row in rows)


def choices(answers: Answers) -> Mapping[str, DomainAnswers]:
    """Return what can be looked at: all domains together first, then each, unless they are too many."""
    each = answers.domains
    if len(each) == 1:
        return each
    return {ALL: together(list(each.values())), **(each if len(each) <= _MOST_CHOICES else {})}


def together(parts: Sequence[DomainAnswers]) -> DomainAnswers:
    """Return the answers of several domains as those of one."""
    return DomainAnswers(
        images=sum(part.images for part in parts),
        changed=sum(part.changed for part in parts),
        predicted_before=_summed(part.predicted_before for part in parts),
        predicted_after=_summed(part.predicted_after for part in parts),
        before=_labelled([part.before for part in parts]),
        after=_labelled([part.after for part in parts]),
    )


def _summed(rows: Iterable[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _labelled(parts: Sequence[Labelled | None]) -> Labelled | None:
    """Join what labels say in the domains that have them."""
    known = [part for part in parts if part]
    if not known:
        return None
    confusion = [_summed(rows) for rows in zip(*(part.confusion for part in known), strict=True)]
    bins = _joined([part.bins for part in known])
    return Labelled(confusion=confusion, bins=bins, calibration_error=calibration_error(bins))


def _joined(parts: Sequence[Bins]) -> Bins:
    """Join bins by their images; those of another number of bins cannot be joined and are left out."""
    alike = [part for part in parts if len(part.images) == len(parts[0].images)]
    images = _summed(part.images for part in alike)

    def mean(take: Callable[[Bins], Sequence[float]]) -> list[float]:
        return [
            sum(part.images[place] * take(part)[place] for part in alike) / amount if amount else 0.0
            for place, amount in enumerate(images)
        ]

    return Bins(images=images, confidence=mean(lambda one: one.confidence), right=mean(lambda one: one.right))


def calibration_error(bins: Bins) -> float:
    """Return the mean distance of confidence and accuracy over the bins, by images."""
    gaps = zip(bins.images, bins.confidence, bins.right, strict=True)
    total = sum(bins.images)
    return sum(n * abs(sure - right) for n, sure, right in gaps) / total if total else math.nan


def right_by_class(labelled: Labelled) -> list[int]:
    """Return how many images of each class are answered rightly."""
    return [row[place] for place, row in enumerate(labelled.confusion)]


def images_by_class(labelled: Labelled) -> list[int]:
    """Return how many images of each class there are."""
    return [sum(row) for row in labelled.confusion]
