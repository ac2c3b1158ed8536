"""Evaluate an adapted model on a few labelled images of the sites, which are never used for training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from fedscal.compare.significance import sign_test_p, wilson
from fedscal.core.errors import DataRefused, nearest
from fedscal.core.table import Table
from fedscal.core.text import percent
from fedscal.data.folders.scan import scan
from fedscal.data.folders.tree import File, Tree, as_one_domain
from fedscal.deploy.classifier import Classifier
from fedscal.deploy.predict import ask
from fedscal.deploy.site import sites_of, use_images, use_site

ALL = "all sites"
_HEADER = ("site", "images", "source model", "adapted model", "fixed / regressed", "p")
_NOTES = (
    "In brackets Wilson's 95 % interval. Fixed: wrong before and right now; regressed: the other way round. "
    "p: exact sign test on these two. The images were not used for anything else.",
)


@dataclass(frozen=True)
class Share:
    """How many answers are right, in percent, with Wilson's interval."""

    right: int
    accuracy: float
    interval_95: tuple[float, float]

    @classmethod
    def of(cls, right: Sequence[bool]) -> Share:
        """Count answers."""
        return cls(sum(right), 100 * sum(right) / len(right), wilson(sum(right), len(right)))

    def __str__(self) -> str:
        low, high = self.interval_95
        return f"{percent(self.accuracy)} [{low:.1f}, {high:.1f}]"


@dataclass(frozen=True, kw_only=True)
class SiteAudit:
    """Two models' answers to the same labelled images of a site.

    Attributes:
        source: the source model, if there is one; the other fields compare the two.
        fixed: answers that were wrong and are right now.
        regressed: answers that were right and are wrong now.
        p: of the exact sign test on these two.
    """

    site: str
    images: int
    adapted: Share
    source: Share | None = None
    fixed: int | None = None
    regressed: int | None = None
    p: float | None = None

    @classmethod
    def of(cls, site: str, after: Sequence[bool], before: Sequence[bool]) -> SiteAudit:
        """Compare the answers of two models, ``before`` empty if there is no source model."""
        counted = cls(site=site, images=len(after), adapted=Share.of(after))
        if not before:
            return counted
        pairs = list(zip(before, after, strict=True))
        fixed, regressed = (
            sum(new and not old for old, new in pairs),
            sum(old and not new for old, new in pairs),
        )
        chance = sign_test_p(fixed, regressed)
        return replace(counted, source=Share.of(before), fixed=fixed, regressed=regressed, p=chance)

    def cells(self) -> list[str]:
        """Return the row's text."""
        compared = ["", "", ""]
        if self.source:
            compared = [str(self.source), f"{self.fixed} / {self.regressed}", f"{self.p:.2g}"]
        return [self.site, str(self.images), compared[0], str(self.adapted), *compared[1:]]


@dataclass(frozen=True)
class Audit:
    """``audit.json``: the sites of an audit, and which model was audited."""

    model_sha256: str
    sites: Sequence[SiteAudit]

    def table(self) -> Table:
        """Return the audit as a table."""
        return Table("Audit on labelled images", _HEADER, [site.cells() for site in self.sites], _NOTES)


def audit(adapted: Classifier, source: Classifier | None, folder: Path) -> Audit:
    """Ask the models about ``folder/<site>/<class>/*`` or ``folder/<class>/*``; then a row for all sites."""
    answers: dict[str, tuple[list[bool], list[bool]]] = {}
    for site, labelled in _labelled(scan(folder), adapted.classes).items():
        before = list(_right(source, labelled)) if source else []
        answers[site] = list(_right(_at(adapted, site, labelled), labelled)), before
    if len(answers) > 1:
        columns = zip(*answers.values(), strict=True)
        after, before = (list(chain.from_iterable(parts)) for parts in columns)
        answers[ALL] = after, before
    sites = [SiteAudit.of(site, after, before) for site, (after, before) in answers.items()]
    return Audit(adapted.card.weights_sha256, sites)


def _at(adapted: Classifier, site: str, labelled: Sequence[File]) -> Classifier:
    """Return the adapted model as it is used at a site."""
    if site in sites_of(adapted):
        use_site(adapted, site)
    else:
        use_images(adapted, [file.path for file in labelled])
    return adapted


def _labelled(tree: Tree, classes: Sequence[str]) -> Mapping[str, Sequence[File]]:
    """Return the files by site; folders that are named like classes are the classes of one site."""
    sites = as_one_domain(tree, tree.root.name).domains
    for name in sorted({file.label or "" for files in sites.values() for file in files}):
        if name not in classes:
            raise DataRefused(f"{tree.root}: '{name}' is no class of the model{nearest(name, classes)}")
    return sites


def _right(classifier: Classifier, files: Sequence[File]) -> Iterator[bool]:
    for file, answer in zip(files, ask(classifier, [file.path for file in files]), strict=True):
        if answer.problem:
            raise DataRefused(f"{file.path}: {answer.problem}. Remove it, or repair it.")
        yield answer.label == file.label
