"""Runs compared by their audits: those that were asked about the same labelled images, image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedscal.compare.comparison import rows
from fedscal.compare.significance import holm, sign_test_p
from fedscal.core.table import Table
from fedscal.core.text import count
from fedscal.experiment.audits import ALL, Audit
from fedscal.experiment.load import Run

_NONE = "\N{EN DASH}"
_LATER = ("source model", "better / worse", "p", "Holm's p")
_NOTE = (
    "Share of right answers, in brackets Wilson's 95 % interval. Each run is compared with the first, image "
    "by image: better, wrong there and right here. p: exact sign test on these two; Holm's p is "
    "corrected for all rows."
)
_ALONE = "Only one run was audited on these images, so there is nothing to compare it with."
_Image = tuple[str, str]
"""A site and the key of one of its labelled images."""


@dataclass(frozen=True)
class _Audited:
    label: str
    audit: Audit

    @property
    def answers(self) -> dict[_Image, bool]:
        """Whether the answer to each image is right."""
        answers = self.audit.answers.items()
        return {(site, image): right for site, images in answers for image, right in images.items()}

    @property
    def asked(self) -> object:
        """What the model was asked about: the same for runs that can be compared."""
        return frozenset(self.answers), tuple(site.site for site in self.audit.sites)

    def against(self, first: _Audited) -> tuple[int, int]:
        """Count the images that only this run, and that only the first has right."""
        theirs = first.answers
        pairs = [(right, theirs[image]) for image, right in self.answers.items()]
        return sum(mine and not other for mine, other in pairs), sum(o and not m for m, o in pairs)

    def shares(self) -> list[str]:
        """Return the accuracy of the adapted model at every site, and the source model's in all."""
        source = self.audit.sites[-1].source
        return [*(str(site.adapted) for site in self.audit.sites), str(source or _NONE)]


def has_audit(run: Run) -> bool:
    """Whether a run's adapted model has answers that can be compared with another's."""
    found = run.audit
    return found is not None and found.judges_adapted and bool(found.answers and found.sites)


def audit_tables(runs: Sequence[Run]) -> list[Table]:
    """Return a table for every set of labelled images; runs that saw different ones are not compared."""
    groups: dict[object, list[_Audited]] = {}
    for run, row in zip(runs, rows(runs), strict=True):
        if run.audit and has_audit(run):
            audited = _Audited(f"{row.label} ({run.path})", run.audit)
            groups.setdefault(audited.asked, []).append(audited)
    return [_table(group, len(groups)) for group in groups.values()]


def _table(group: Sequence[_Audited], sets: int) -> Table:
    first, *others = group
    counts = [one.against(first) for one in others]
    chances = [sign_test_p(better, worse) for better, worse in counts]
    compared = [
        [f"{better} / {worse}", f"{p:.2g}", f"{corrected:.2g}"]
        for (better, worse), p, corrected in zip(counts, chances, holm(chances), strict=True)
    ]
    sites = [site.site for site in first.audit.sites]
    lines = [
        [one.label, *one.shares(), *cells]
        for one, cells in zip(group, [["first", _NONE, _NONE], *compared], strict=True)
    ]
    title = f"Audited on {count(first.audit.images, 'labelled image')}"
    return Table(title, ["run", *sites, *_LATER], lines, _notes(group, sets), headline=_headline(sites))


def _headline(sites: Sequence[str]) -> str:
    return ALL if ALL in sites else sites[-1]


def _notes(group: Sequence[_Audited], sets: int) -> list[str]:
    notes = [_NOTE if len(group) > 1 else _ALONE]
    if sets > 1:
        notes.append(
            f"The runs were audited on {sets} different sets of images; only runs of one set are compared."
        )
    seen = dict.fromkeys(one.audit.seen.sentence(one.audit.images) for one in group)
    return [*notes, *seen]
