"""An audit counted, and its verdict in a sentence: which site lost comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, sqrt

from fedscal.compare.significance import sign_test_p, wilson
from fedscal.core.errors import some
from fedscal.core.text import percent
from fedscal.experiment.audits import ALL, AuditVerdict, Share, SiteAudit

_SURE = 0.05
_DIFFERENCE = 0.05
"""The difference of two shares, 5 points, that an audit should be able to show."""
_NORMAL_95, _NORMAL_80 = 1.96, 0.84
"""Quantiles of the normal distribution: of p = 5 %, two-sided, and of four cases in five."""
_NAMED = 3


def share_of(right: Sequence[bool]) -> Share:
    """Count answers."""
    return Share(sum(right), 100 * sum(right) / len(right), wilson(sum(right), len(right)))


def site_audit(site: str, after: Sequence[bool], before: Sequence[bool]) -> SiteAudit:
    """Compare the answers of two models, ``before`` empty if there is no source model."""
    counted = SiteAudit(site=site, images=len(after), adapted=share_of(after))
    if not before:
        return counted
    pairs = list(zip(before, after, strict=True))
    fixed = sum(new and not old for old, new in pairs)
    regressed = sum(old and not new for old, new in pairs)
    chance = sign_test_p(fixed, regressed)
    return replace(counted, source=share_of(before), fixed=fixed, regressed=regressed, p=chance)


def verdict_on(sites: Sequence[SiteAudit]) -> tuple[AuditVerdict, str]:
    """Return the verdict and its sentence; the last site is the row for all, if there are several."""
    overall = sites[-1]
    if overall.source is None:
        return "unsure", (
            f"The model is right for {overall.adapted} of {overall.images} images; there is no source model "
            "beside it to compare with."
        )
    lost = [site for site in sites if site.site != ALL and _change(site) < 0]
    if lost:
        named = some([f"{site.site} ({_numbers(site)})" for site in lost], _NAMED)
        rest = f" Over all sites: {_numbers(overall)}." if overall.site == ALL else ""
        return "worse", f"The adapted model is worse at {named}: do not use it there.{rest}"
    if _change(overall) < 0:
        return "worse", f"The adapted model is worse: {_numbers(overall)}. Do not use it."
    if _change(overall) > 0:
        return "better", f"The adapted model is better: {_numbers(overall)}."
    return "unsure", f"No difference beyond chance can be seen: {_numbers(overall)}. {_more(overall)}"


def _change(site: SiteAudit) -> int:
    """Return the sign of a change that is more than chance, else 0."""
    if site.p is None or site.p >= _SURE:
        return 0
    return 1 if (site.fixed or 0) > (site.regressed or 0) else -1


def _numbers(site: SiteAudit) -> str:
    before = percent(site.source.accuracy) if site.source else ""
    after = percent(site.adapted.accuracy)
    return f"{after} against {before} of {site.images} images are right, p = {site.p:.2g}"


def _more(site: SiteAudit) -> str:
    """Say how many more images would show a difference that matters."""
    changed = ((site.fixed or 0) + (site.regressed or 0)) / site.images
    more = images_needed(changed) - site.images
    if more <= 0:
        return "A difference of 5 points would probably have been seen."
    return (
        f"About {_rounded(more)} more labelled images would show a difference of 5 points; then audit again."
    )


def images_needed(changed: float) -> int:
    """Return how many pairs show a difference of 5 points in four cases of five, at p = 5 %.

    Connor's formula for McNemar's test (Biometrics 1987); ``changed`` is the share of images that one model
    has right and the other wrong, which is at least the difference itself.

    >>> images_needed(0.2)
    625
    """
    changed = max(changed, _DIFFERENCE)
    spread = _NORMAL_95 * sqrt(changed) + _NORMAL_80 * sqrt(changed - _DIFFERENCE**2)
    return ceil((spread / _DIFFERENCE) ** 2)


def _rounded(number: int) -> int:
    """Round up to ten: it is an estimate."""
    return 10 * ceil(number / 10)
