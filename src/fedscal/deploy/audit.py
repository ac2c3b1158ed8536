"""Check an adapted model on a few labelled images of the sites: for the verdict alone, never for training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedscal.compare.significance import sign_test_p, wilson
from fedscal.core.errors import DataRefused, nearest
from fedscal.core.table import Table
from fedscal.core.text import percent
from fedscal.data.folders.scan import scan
from fedscal.data.folders.tree import File, Tree, as_one_domain
from fedscal.deploy.classifier import Classifier
from fedscal.deploy.predict import ask

ALL = "all sites"
_HEADER = ("site", "images", "source model", "adapted model", "mended / broken", "p")
_NOTES = (
    "In brackets Wilson's 95 % interval. Mended: wrong before and right now; broken: the other way round. "
    "p: exact sign test on these two. The images were not used for anything else.",
)


@dataclass(frozen=True)
class Audit:
    """How two models answer the same labelled images of a site; without a source model ``before`` is None."""

    site: str
    after: Sequence[bool]
    before: Sequence[bool] | None

    @property
    def changes(self) -> tuple[int, int]:
        """How many answers were mended, and how many broken."""
        pairs = list(zip(self.before or self.after, self.after, strict=True))
        return sum(new and not old for old, new in pairs), sum(old and not new for old, new in pairs)

    def cells(self) -> list[str]:
        """Return the row's text."""
        mended, broken = self.changes
        compared = [f"{mended} / {broken}", f"{sign_test_p(mended, broken):.2g}"] if self.before else ["", ""]
        before = share_text(_numbers(self.before)) if self.before else ""
        return [self.site, str(len(self.after)), before, share_text(_numbers(self.after)), *compared]

    def facts(self) -> dict[str, Any]:
        """Return the numbers, for other programs."""
        mended, broken = self.changes
        found: dict[str, Any] = {
            "site": self.site,
            "images": len(self.after),
            "adapted": _numbers(self.after),
        }
        if self.before:
            change = {"mended": mended, "broken": broken, "p": sign_test_p(mended, broken)}
            found |= {"source": _numbers(self.before), **change}
        return found


def audit(adapted: Classifier, source: Classifier | None, folder: Path) -> list[Audit]:
    """Ask the models about ``folder/<site>/<class>/*`` or ``folder/<class>/*``; then a row for all sites."""
    found = [
        Audit(site, list(_right(adapted, known)), list(_right(source, known)) if source else None)
        for site, known in _labelled(scan(folder), adapted.classes).items()
    ]
    if len(found) == 1:
        return found
    before = [answer for one in found for answer in one.before or ()]
    return [*found, Audit(ALL, [answer for one in found for answer in one.after], before or None)]


def audit_table(found: Sequence[Audit]) -> Table:
    """Return the audit as a table."""
    return Table("Audit on labelled images", _HEADER, [one.cells() for one in found], _NOTES)


def _labelled(tree: Tree, classes: Sequence[str]) -> Mapping[str, Sequence[File]]:
    """Return the files by site; folders that are named like classes are the classes of one site."""
    sites = as_one_domain(tree, tree.root.name).domains
    for name in sorted({file.label or "" for found in sites.values() for file in found}):
        if name not in classes:
            raise DataRefused(f"{tree.root}: '{name}' is no class of the model{nearest(name, classes)}")
    return sites


def _right(classifier: Classifier, known: Sequence[File]) -> Iterator[bool]:
    for file, answer in zip(known, ask(classifier, [file.path for file in known]), strict=True):
        if answer.problem:
            raise DataRefused(f"{file.path}: {answer.problem}. Remove it, or mend it.")
        yield answer.label == file.label


def share_text(numbers: Mapping[str, Any]) -> str:
    """Write an accuracy with its interval."""
    low, high = numbers["interval_95"]
    return f"{percent(numbers['accuracy'])} [{low:.1f}, {high:.1f}]"


def _numbers(right: Sequence[bool]) -> dict[str, Any]:
    return {
        "right": sum(right),
        "accuracy": 100 * sum(right) / len(right),
        "interval_95": list(wilson(sum(right), len(right))),
    }
