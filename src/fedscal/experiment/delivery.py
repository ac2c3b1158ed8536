"""Which round a run delivers where nobody has labels, and how far to trust it.

Adaptation without labels changes a model's answers; good adaptation changes few of them. So the share of a
site's images on which adapted and source model answer alike tells a healthy run from one that ran away.
Entropy and InfoMax do not: they reward a model that is surely wrong. docs/methods.md has the measurements
behind the two numbers below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from fedscal.core.errors import some
from fedscal.core.text import count
from fedscal.core.types import ClientId
from fedscal.experiment.metrics import collapsed, doubtful_source, selected_round, telling
from fedscal.experiment.records import ClientRecord, Delivery, RoundRecord

AGREEMENT = "agreement"
"""The value of ``select`` that chooses by it."""
_AGREE, _SURELY = 0.6, 0.65
"""Sites together agree with the source model on so many images in runs that gained: at least; as a rule."""
_SITE_AGREES = 0.5
"""A single site may differ more; below this, it keeps the source model and needs a look."""
_STEADY_AGREES = 0.9
"""Where the source model is unsteady, more answers change in good runs: so many of its steady ones stay."""
_NAMED = 3


def agreement(record: RoundRecord) -> float:
    """Return the mean agreement over the sites that have enough images to tell; 1 for the source model."""
    rows = _comparing(record)
    return fmean(row.agreement for row in rows) if rows else float(record.round == 0)


def _comparing(record: RoundRecord) -> list[ClientRecord]:
    rows = [row for row in record.clients.values() if not math.isnan(row.agreement)]
    return list(filter(telling, rows)) or rows


def _agrees(record: RoundRecord, least: float) -> bool:
    """Whether the sites together agree with the source model on so many images, or are as steady as it."""
    rows = _comparing(record)
    return agreement(record) >= (fmean(_least(row, least) for row in rows) if rows else least)


def _least(row: ClientRecord, least: float) -> float:
    """Return the agreement that is asked of a site: less of one whose images the source model knows less."""
    steady = row.source_steadiness
    return least if math.isnan(steady) else min(least, _STEADY_AGREES * steady)


def with_verdicts(record: RoundRecord, earlier: Sequence[RoundRecord], signal: str) -> RoundRecord:
    """Add the collapse warning and the label-free selected round so far."""
    fallen = collapsed(record, earlier[0]) if earlier else []
    if fallen:
        warning = (
            f"round {record.round}: predictions collapse to few classes for {some(sorted(fallen), _NAMED)}"
        )
        record = replace(record, warnings=(*record.warnings, warning))
    candidates = [*_candidates(earlier), record]
    chosen = delivered_round(candidates) if signal == AGREEMENT else selected_round(candidates, signal)
    return replace(record, selected_round=chosen)


def _candidates(earlier: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return the source model's round, and the best so far: no other can be chosen any more."""
    best = earlier[-1].selected_round if earlier else None
    return [record for record in earlier if record.round in (0, best)]


def delivered_round(records: Sequence[RoundRecord]) -> int:
    """Return the last round that agrees with the source model and collapsed nowhere; 0 if none does."""
    healthy = (
        record.round
        for record in reversed(records)
        if _agrees(record, _AGREE) and not collapsed(record, records[0])
    )
    return next(healthy, 0)


def judge_delivery(records: Sequence[RoundRecord]) -> Delivery:
    """Return the round that a finished run delivers, and the verdict on it."""
    chosen = delivered_round(records)
    delivered = next(record for record in records if record.round == chosen)
    broken = doubtful_source(records[0].clients)
    if broken:
        return Delivery(chosen, "do not use", broken)
    fallen = sorted(collapsed(records[-1], records[0]))
    strange, small = _strange(delivered), _small(delivered)
    reasons = [*_doubts(chosen, records, fallen), *_far(delivered), *_doubtful_sites(strange, small)]
    reasons += _unheard(delivered, records[0])
    sites = sorted({*fallen, *strange, *small})
    return Delivery(chosen, "unsure" if reasons else "better", reasons, sites, strange)


def _doubts(chosen: int, records: Sequence[RoundRecord], fallen: Sequence[ClientId]) -> list[str]:
    """Say what is wrong with the last round: a site at which it collapsed is named."""
    last = records[-1]
    reasons = [f"the last round collapsed to few classes at {some(fallen, _NAMED)}"] if fallen else []
    if chosen != last.round:
        if not _agrees(last, _AGREE):
            share = f"{agreement(last):.0%}"
            reasons.append(f"the last round answers like the source model for {share} of the images only")
        kept = f"round {chosen}" if chosen else "the source model with each site's own statistics"
        reasons.append(f"{kept} is delivered in place of the last round")
    return reasons


def _far(delivered: RoundRecord) -> list[str]:
    """Say if a round changed more answers than most that gained."""
    if _agrees(delivered, _SURELY):
        return []
    return [f"the source model answers alike for {agreement(delivered):.0%} of the images only"]


def _strange(delivered: RoundRecord) -> list[ClientId]:
    rows = sorted(delivered.judges.items())
    return [client for client, row in rows if telling(row) and row.agreement < _least(row, _SITE_AGREES)]


def _small(delivered: RoundRecord) -> list[ClientId]:
    return [client for client, row in sorted(delivered.judges.items()) if not telling(row)]


def _unheard(delivered: RoundRecord, first: RoundRecord) -> list[str]:
    """Say if a round was judged by some of the sites only."""
    heard, all_ = len(delivered.judges), len(first.clients)
    return [f"round {delivered.round} was judged at {heard} of {count(all_, 'site')}"] if heard < all_ else []


def _doubtful_sites(strange: Sequence[ClientId], small: Sequence[ClientId]) -> list[str]:
    reasons = []
    if strange:
        named = some(strange, _NAMED)
        reasons.append(f"more than half of the answers changed at {named}: the source model is kept there")
    if small:
        named = some(small, _NAMED)
        reasons.append(f"nothing can be said of {count(len(small), 'site')} with few images: {named}")
    return reasons
