"""The charts and tables of what the models answer: classes, confusions, calibration, features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fedscal.core.table import Table
from fedscal.core.text import UNKNOWN, decimals, percent, signed
from fedscal.experiment.answers import Answers, DomainAnswers, Labelled
from fedscal.report.answered import ALL, choices, images_by_class, right_by_class
from fedscal.report.charts import (
    Calibration,
    Calibrations,
    Classes,
    Confusion,
    Confusions,
    Counts,
    Curve,
    Exhibit,
    Recalls,
    Right,
    Scatter,
    number,
    numbers,
)

_LARGEST_MATRIX = 40
"""Classes of a matrix that can still be read."""
_MOST_CELLS = 40_000
"""Numbers of all matrices: with more, only the first choice's is in the page."""
_MOST_POINTS = 2_000
_MOST_PAIRS = 8
Pairs = Mapping[str, tuple[Labelled, Labelled]]


def class_charts(answers: Answers) -> list[Exhibit]:
    """Return how often each class is answered and, with labels, how often rightly and what instead."""
    found, labelled = choices(answers), _pairs(answers)
    drawn = [
        Exhibit(
            "classes",
            "How often each class is answered",
            "A class that grows at the expense of others is the first sign of a collapse.",
            Classes(names=answers.classes, choices={name: _counts(one) for name, one in found.items()}),
        )
    ]
    if labelled:
        drawn.append(
            Exhibit(
                "recall",
                "Right answers by class",
                "The share of each class's images that is answered rightly, before and after; what lost most "
                "comes first.",
                Recalls(
                    names=answers.classes, choices={name: _right(*pair) for name, pair in labelled.items()}
                ),
            )
        )
    return drawn + _matrix(answers.classes, labelled)


def _pairs(answers: Answers) -> Pairs:
    """Return the choices whose labels are known."""
    found = choices(answers).items()
    return {name: (one.before, one.after) for name, one in found if one.before and one.after}


def _counts(one: DomainAnswers) -> Counts:
    true = images_by_class(one.after) if one.after else []
    return Counts(before=one.predicted_before, after=one.predicted_after, true=true)


def _right(before: Labelled, after: Labelled) -> Right:
    return Right(images=images_by_class(after), before=right_by_class(before), after=right_by_class(after))


def _matrix(classes: Sequence[str], labelled: Pairs) -> list[Exhibit]:
    """Return the confusion matrix, if it can be read and is not too large for a page."""
    if not labelled or len(classes) > _LARGEST_MATRIX:
        return []
    most = max(1, _MOST_CELLS // (2 * len(classes) ** 2))
    kept = dict(list(labelled.items())[: most if most >= len(labelled) else 1])
    matrices = {
        name: Confusion(before=before.confusion, after=after.confusion)
        for name, (before, after) in kept.items()
    }
    caption = "Rows are the true classes, columns the answers. Blue is right, red is wrong; darker is more."
    chart = Confusions(names=classes, choices=matrices)
    return [Exhibit("confusion", "What is taken for what", caption, chart)]


def calibration_chart(answers: Answers) -> list[Exhibit]:
    """Return the reliability diagram; none without labels."""
    found = {
        name: Calibration(before=_curve(before), after=_curve(after))
        for name, (before, after) in _pairs(answers).items()
    }
    caption = (
        "On the dotted line a model is as sure as it is right; below it, it is surer than right. Larger dots "
        "are more images."
    )
    chart = Calibrations(choices=found)
    return [Exhibit("calibration", "How sure, and how often right", caption, chart)] if found else []


def _curve(labelled: Labelled) -> Curve:
    bins = labelled.bins
    rows = [row for row in zip(bins.images, bins.confidence, bins.right, strict=True) if row[0] > 0]
    return Curve(
        images=[images for images, _, _ in rows],
        confidence=numbers(sure for _, sure, _ in rows),
        right=numbers(right for _, _, right in rows),
        error=number(labelled.calibration_error),
    )


def feature_chart(answers: Answers) -> list[Exhibit]:
    """Return the features of a sample of images in the plane, before and after."""
    step = math.ceil(len(answers.points) / _MOST_POINTS)
    points = [point for point in answers.points[:: max(step, 1)] if _finite(*point.before, *point.after)]
    if not points:
        return []
    domains = list(dict.fromkeys(point.domain for point in points))
    known = any(point.label is not None for point in points)
    chart = Scatter(
        classes=answers.classes,
        domains=domains,
        before=[(number(x), number(y)) for x, y in (point.before for point in points)],
        after=[(number(x), number(y)) for x, y in (point.after for point in points)],
        domain=[domains.index(point.domain) for point in points],
        answer=[point.answer for point in points],
        label=[point.label for point in points] if known else [],
    )
    how = f" by {answers.projection}" if answers.projection else ""
    caption = (
        f"A dot is an image; the features were brought into the plane{how}. Distances between groups mean "
        "little; groups of one class, and domains that lie together, are good signs."
    )
    return [Exhibit("features", "Features before and after", caption, chart)]


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def domain_table(answers: Answers) -> Table:
    """Return by domain how many answers changed and, with labels, the calibration."""
    labelled = bool(_pairs(answers))
    header = ["domain", "images", "changed", "share, %"]
    header += ["calibration error, %", "after, %"] if labelled else []
    rows = [[name, *_domain_cells(one, labelled)] for name, one in _by_domain(answers).items()]
    notes = ["Changed: images whose answer is another one than the source model's."]
    if labelled:
        notes.append("Calibration error: the mean distance of confidence and accuracy; smaller is better.")
    return Table("Answers by domain", header, rows, notes)


def _by_domain(answers: Answers) -> Mapping[str, DomainAnswers]:
    """Return every domain, however many, and all together last."""
    whole = choices(answers)
    return {**answers.domains, **({ALL: whole[ALL]} if ALL in whole else {})}


def _domain_cells(one: DomainAnswers, labelled: bool) -> list[str]:
    share = decimals(100 * one.changed / one.images, 1) if one.images else UNKNOWN
    errors = [
        decimals(100 * part.calibration_error, 1) if part else UNKNOWN for part in (one.before, one.after)
    ]
    return [str(one.images), str(one.changed), share, *(errors if labelled else [])]


def class_table(answers: Answers) -> Table:
    """Return the numbers by class over all domains."""
    whole = next(iter(choices(answers).values()))
    header = ["class", "answered before", "answered after"]
    rows = [
        [name, str(before), str(after)]
        for name, before, after in zip(
            answers.classes, whole.predicted_before, whole.predicted_after, strict=True
        )
    ]
    if whole.before and whole.after:
        header += ["images", "right before", "right after", "change, points"]
        known = _right(whole.before, whole.after)
        rows = [
            row + _recall_cells(*counts)
            for row, counts in zip(
                rows, zip(known.images, known.before, known.after, strict=True), strict=True
            )
        ]
    return Table("Answers by class", header, rows)


def _recall_cells(images: int, before: int, after: int) -> list[str]:
    if not images:
        return ["0", UNKNOWN, UNKNOWN, UNKNOWN]
    shares = [100 * right / images for right in (before, after)]
    return [str(images), *map(percent, shares), signed(shares[1] - shares[0])]


def mistake_table(answers: Answers) -> Table | None:
    """Return what is most often taken for what; None without labels."""
    pairs = _pairs(answers)
    if not pairs:
        return None
    before, after = next(iter(pairs.values()))
    found = [
        (after.confusion[true][said], before.confusion[true][said], true, said)
        for true in range(len(answers.classes))
        for said in range(len(answers.classes))
        if true != said and after.confusion[true][said]
    ]
    names = answers.classes
    worst = sorted(found, key=lambda one: (-one[0], one[2], one[3]))[:_MOST_PAIRS]
    rows = [[f"{names[true]} → {names[said]}", str(then), str(now)] for now, then, true, said in worst]
    return Table("Most frequent mistakes", ["class → answer", "before", "after"], rows) if rows else None
