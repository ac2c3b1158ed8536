"""What is seen first: the numbers that count, and before and after by site."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedscal.core.text import decimals, percent, signed
from fedscal.experiment.audits import ALL, Audit, Share
from fedscal.experiment.load import Run
from fedscal.experiment.outcome import Change, client_rows, domain_rows, outcome
from fedscal.experiment.records import AVERAGE
from fedscal.report.answered import consistent, together
from fedscal.report.run_charts import MANY
from fedscal.report.verdict import fallen_sites

_SHOWN = 6
"""Of many sites, those that lost most."""


@dataclass(frozen=True)
class Tile:
    """A number that counts."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A site or domain before and after, and where that is on a track from 0 to 100.

    Attributes:
        word: what the change means, as a word and as a class of the page.
        interval: of the number after, on the track; empty if it is exact.
    """

    name: str
    before: str
    after: str
    change: str
    word: str
    places: tuple[float, float]
    interval: tuple[float, ...] = ()
    total: bool = False


@dataclass(frozen=True)
class Glance:
    """Before and after by site.

    Attributes:
        what: what is measured.
        ends: the two ends of the track, in words.
        hidden: how many sites are not among the lines.
    """

    what: str
    ends: tuple[str, str]
    lines: Sequence[Line]
    hidden: int = 0


@dataclass(frozen=True)
class _Measured(Change):
    """A change and the interval of its later value."""

    interval: tuple[float, ...] = ()


def glance(run: Run) -> Glance | None:
    """Return accuracy before and after where it is known, else how many classes are answered in effect."""
    if run.last_round == 0:
        return None
    if outcome(run).accuracy.labelled:
        rows = [_Measured(row.name, row.before, row.after) for row in domain_rows(run)]
        return _percentages("Accuracy by domain", _without_double_total(rows))
    if run.audit and run.audit.judges_adapted and any(site.source for site in run.audit.sites):
        return _percentages("Accuracy in the audit, by site", _audited(run.audit))
    return _classes(run)


def _without_double_total(rows: Sequence[_Measured]) -> Sequence[_Measured]:
    """Leave the average of a single domain away."""
    return rows if len(rows) > 2 else rows[:1]


def _audited(audit: Audit) -> list[_Measured]:
    pairs = [(site.site, site.source, site.adapted) for site in audit.sites]
    return [
        _Measured(name, source.accuracy, adapted.accuracy, adapted.interval_95)
        for name, source, adapted in pairs
        if source
    ]


def _percentages(what: str, rows: Sequence[_Measured]) -> Glance | None:
    known = [row for row in rows if math.isfinite(row.delta)]
    if not known:
        return None
    values = [_within_reason(value) for row in known for value in (row.before, row.after, *row.interval)]
    low, high = 10 * math.floor(min(values) / 10), 10 * math.ceil(max(values) / 10)
    low, high = (low, high) if high > low else (max(0, low - 10), low + 10)

    def place(value: float) -> float:
        return round(100 * (_within_reason(value) - low) / (high - low), 2)

    lines = [
        Line(
            row.name,
            percent(row.before),
            percent(row.after),
            f"{signed(row.delta)} {row.word}",
            row.word.lower(),
            (place(row.before), place(row.after)),
            tuple(map(place, row.interval)),
            total=row.name in {AVERAGE, ALL},
        )
        for row in known
    ]
    return _cut(Glance(what, (f"{low} %", f"{high} %"), lines), [row.delta for row in known])


def _within_reason(value: float) -> float:
    """Return a percentage that is one: an audit's file may hold any number."""
    return min(max(value, 0.0), 100.0) if math.isfinite(value) else 0.0


def _classes(run: Run) -> Glance | None:
    rows = [row for row in client_rows(run) if math.isfinite(row.classes_before + row.classes_after)]
    if not rows:
        return None
    fallen = set(fallen_sites(run))
    high = math.ceil(max(max(row.classes_before, row.classes_after) for row in rows)) or 1
    lines = [
        Line(
            row.name,
            decimals(row.classes_before, 1),
            decimals(row.classes_after, 1),
            "COLLAPSED" if row.name in fallen else signed(row.classes_after - row.classes_before),
            "worse" if row.name in fallen else "same",
            (100 * row.classes_before / high, 100 * row.classes_after / high),
        )
        for row in rows
    ]
    ranks = [row.classes_after - row.classes_before for row in rows]
    return _cut(Glance("Classes answered in effect, by client", ("0", str(high)), lines), ranks)


def _cut(whole: Glance, ranks: Sequence[float]) -> Glance:
    """Keep of many lines those that lost most, and the total."""
    if len(whole.lines) <= MANY + 1:
        return whole
    ordered = sorted(zip(ranks, whole.lines, strict=True), key=lambda pair: pair[0])
    kept = [line for _, line in ordered if not line.total][:_SHOWN]
    kept += [line for line in whole.lines if line.total]
    hidden = len(whole.lines) - len(kept)
    return Glance(f"{whole.what}: what lost most", whole.ends, kept, hidden)


def tiles(run: Run) -> list[Tile]:
    """Return the numbers that count: at most four."""
    if run.last_round == 0:
        return []
    scored = _accuracy_tiles(run) or _audit_tiles(run)
    found = [*scored, *_answer_tiles(run), *([] if scored else _class_tiles(run)), *_client_tiles(run)]
    return found[:4]


def _accuracy_tiles(run: Run) -> list[Tile]:
    accuracy = outcome(run).accuracy
    if not accuracy.labelled:
        return []
    change = Change(AVERAGE, accuracy.source_only.average, accuracy.last.average)
    return [
        Tile("Source model", percent(change.before), "average accuracy"),
        Tile("Adapted model", percent(change.after), f"{signed(change.delta)} points, {change.word}"),
    ]


def _audit_tiles(run: Run) -> list[Tile]:
    if not (run.audit and run.audit.judges_adapted and run.audit.sites):
        return []
    last = run.audit.sites[-1]
    note = f"on {run.audit.images} labelled images"
    source = [Tile("Source model", percent(last.source.accuracy), note)] if last.source else []
    return [*source, Tile("Adapted model", percent(last.adapted.accuracy), _within(last.adapted))]


def _within(share: Share) -> str:
    low, high = share.interval_95
    return f"95 % interval {low:.0f} to {high:.0f} %"


def _answer_tiles(run: Run) -> list[Tile]:
    if run.answers and consistent(run.answers):
        whole = together(list(run.answers.domains.values()))
        if whole.images:
            share = percent(100 * whole.changed / whole.images)
            return [Tile("Answers that changed", share, f"{whole.changed:,} of {whole.images:,} images")]
    kept = [row.agreement for row in run.rounds[-1].clients.values()] if run.rounds else []
    known = [value for value in kept if math.isfinite(value)]
    if not known:
        return []
    return [Tile("Answers that changed", percent(100 * (1 - fmean(known))), "mean over the clients")]


def _class_tiles(run: Run) -> list[Tile]:
    rows = [row for row in client_rows(run) if math.isfinite(row.classes_before + row.classes_after)]
    if not rows:
        return []
    before, after = (
        fmean(part) for part in zip(*((r.classes_before, r.classes_after) for r in rows), strict=True)
    )
    return [Tile("Classes in effect", f"{before:.1f} → {after:.1f}", "mean over the clients")]


def _client_tiles(run: Run) -> list[Tile]:
    rows = [row for row in client_rows(run) if row.word != "unknown"]
    fallen = fallen_sites(run)
    if fallen:
        return [Tile("Clients that collapsed", str(len(fallen)), f"of {len(run.clients)}")]
    if len(rows) < 2:
        return []
    worse = sum(row.word == "WORSE" for row in rows)
    return [Tile("Clients that lost", str(worse), f"of {len(rows)}")]
