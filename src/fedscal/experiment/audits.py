"""``audit.json``: what labelled images said about a run's model, as typed values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedscal.core.table import Table
from fedscal.core.text import percent

AUDIT = "audit.json"
"""The file in a run directory that ``fedscal audit`` writes."""
ALL = "all sites"
AuditVerdict = Literal["", "better", "unsure", "worse"]
"""On the adapted model beside the source model; empty in an audit by an earlier version."""
_HEADER = ("site", "images", "source model", "adapted model", "fixed / regressed", "p")
_NOTE = (
    "In brackets Wilson's 95 % interval. Fixed: wrong before and right now; regressed: the other way round. "
    "p: exact sign test on these two."
)


@dataclass(frozen=True)
class Share:
    """How many answers are right, in percent, with Wilson's interval."""

    right: int
    accuracy: float
    interval_95: tuple[float, float]

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

    def cells(self) -> list[str]:
        """Return the row's text."""
        compared = ["", "", ""]
        if self.source:
            chance = "" if self.p is None else f"{self.p:.2g}"
            compared = [str(self.source), f"{self.fixed} / {self.regressed}", chance]
        return [self.site, str(self.images), compared[0], str(self.adapted), *compared[1:]]


@dataclass(frozen=True)
class Seen:
    """How many of the audited files the run had before, by the sha256 of their bytes.

    Attributes:
        adapted_to: files that are among the sites' unlabelled images; None if it cannot be known.
        source: files that the source model was trained on with their labels; None if it came from elsewhere.
        unknown: why it cannot be known.
    """

    adapted_to: int | None = None
    source: int | None = None
    unknown: str = ""

    def sentence(self, images: int) -> str:
        """Say what these images can tell."""
        if self.adapted_to is None:
            return f"Whether the model has seen these images before cannot be known: {self.unknown}."
        if self.source:
            return (
                f"{self.source} of {images} images are files that the source model was trained on with their "
                "labels: both models know them by heart. Leave them out."
            )
        foreign = " What the source model was trained on is not known here." if self.source is None else ""
        if self.adapted_to:
            return (
                f"{self.adapted_to} of {images} images are files that the run adapted to, without their "
                f"labels: a fair test of the model on the sites' own images, not of new ones.{foreign}"
            )
        return f"None of the {images} images is, byte for byte, one that the run adapted to.{foreign}"


@dataclass(frozen=True, repr=False)
class Audit:
    """An audit.

    Attributes:
        model_sha256: the weights of the model that was audited.
        sites: the sites, and a row for all of them if they are several.
        model: the name of its file.
        verdict: better or worse than the source model by more than chance, at all sites or at one.
        sentence: the same in words.
        seen: how many of the images the run had before.
        answers: by site whether the answer to each image is right. The key is a hash of an image's bytes and
            its label, so that runs that were audited on the same labelled images can be compared.
    """

    model_sha256: str
    sites: Sequence[SiteAudit]
    model: str = ""
    verdict: AuditVerdict = ""
    sentence: str = ""
    seen: Seen = Seen(unknown="an earlier version did not look")
    answers: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """The number of images at all sites; the last row counts them."""
        return self.sites[-1].images if self.sites else 0

    @property
    def judges_adapted(self) -> bool:
        """Whether it gives a verdict on an adapted model: the source model can be audited too."""
        return bool(self.verdict) and not self.model.startswith("source.")

    def __repr__(self) -> str:
        return f"{self.table().text()}\n{self.sentence}".rstrip()

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        table = self.table()
        return replace(table, notes=(self.sentence, *table.notes)).html()

    def table(self) -> Table:
        """Return the audit as a table."""
        rows = [site.cells() for site in self.sites]
        return Table("Audit on labelled images", _HEADER, rows, (_NOTE, self.seen.sentence(self.images)))
