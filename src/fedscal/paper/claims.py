"""The paper's claims, judged by our runs: a sentence for each whose runs are all finished."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from fedscal.compare.significance import sign_flip_p
from fedscal.paper.measured import INDEPENDENT, OWN, RECEIVED, TOGETHER, joint_errors, label_gaps, slopes
from fedscal.paper.printed import ALL, AVERAGE, OURS, exceptions
from fedscal.paper.scores import Score
from fedscal.paper.tables import Entry

_WITHIN = 2.0
"""Largest difference in points of an average that counts as reproduced."""
_ORDER = (
    ("FedLoA", OURS, f"{OURS} is better than FedLoA"),
    ("neither alignment", "client alignment", "the client's alignment helps"),
    ("neither alignment", "server alignment", "the server's alignment helps"),
    ("client alignment", "both alignments", "both alignments are better than the client's alone"),
    ("server alignment", "both alignments", "both alignments are better than the server's alone"),
    ("fixed threshold", "adaptive threshold", "the adaptive threshold is better than the fixed one"),
)
_SEVERAL = 3
"""With fewer printed methods, to be above every other one is to be above one."""


def claims(scores: Sequence[Score], entries: Sequence[Entry] = ()) -> list[str]:
    """Return what became of the claims; of those over the rounds by the entries' runs."""
    sentences: list[str] = []
    for name in dict.fromkeys(score.block.name for score in scores):
        mine = [score for score in scores if score.block.name == name and score.source != ALL]
        averages = {(score.method, score.source): score for score in mine if score.target == AVERAGE}
        runs = [entry for entry in entries if entry.block.name == name] if averages else []
        judged = (
            *_orders(averages),
            *_above_all(name, mine),
            *_distances(averages),
            *_growth(_finished(runs, "FedLoA", OURS)),
            *_errors(_finished(runs, OURS)),
        )
        sentences += [f"{name}: {text}" for text in judged]
    return sentences


def _finished(entries: Sequence[Entry], *rows: str) -> list[Entry]:
    """Return the runs of some rows, if all of them have come to their end."""
    runs = [entry for entry in entries if entry.variant.title in rows]
    whole = {entry.variant.title for entry in runs} == set(rows)
    return runs if whole and all(entry.cell.directory.finished for entry in runs) else []


def _orders(averages: Mapping[tuple[str, str], Score]) -> Iterator[str]:
    for worse, better, claim in _ORDER:
        gaps = [
            score.mean() - averages[worse, source].mean()
            for (method, source), score in averages.items()
            if method == better and (worse, source) in averages
        ]
        if gaps and all(map(math.isfinite, gaps)):
            held = sum(gap > 0 for gap in gaps)
            mean = math.fsum(gaps) / len(gaps)
            yield f"{claim} on {held} of {len(gaps)} sources, by {mean:+.2f} points on average."


def _above_all(name: str, scores: Sequence[Score]) -> Iterator[str]:
    """Judge whether FedSCAl is above every other method that the paper prints, target by target."""
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for score in scores:
        if score.paper is not None:
            cells.setdefault((score.source, score.target), {})[score.method] = score.mean()
    rows = cells.values()
    if not rows or any(OURS not in row or len(row) < _SEVERAL for row in rows):
        return
    if not all(math.isfinite(value) for row in rows for value in row.values()):
        return
    held = {cell: max(row, key=row.__getitem__) == OURS for cell, row in cells.items()}
    targets = [is_first for (_, target), is_first in held.items() if target != AVERAGE]
    averages = [is_first for (_, target), is_first in held.items() if target == AVERAGE]
    printed, broken = exceptions(name)
    yield (
        f"{OURS} is above every other method in {sum(targets)} of {len(targets)} targets "
        f"(in the paper's own numbers in {printed - len(broken)} of {printed}) and on {sum(averages)} of "
        f"{len(averages)} averages."
    )


def _distances(averages: Mapping[tuple[str, str], Score]) -> Iterator[str]:
    known = [score for score in averages.values() if score.paper is not None]
    if not known or not all(math.isfinite(score.difference()) for score in known):
        return
    near = {
        moment: sum(abs(score.difference(moment)) <= _WITHIN for score in known)
        for moment in ("last", "best")
    }
    yield (
        f"{near['last']} of {len(known)} averages are within {_WITHIN:g} points of the paper's in the last "
        f"round, {near['best']} in the best one."
    )


def _growth(entries: Sequence[Entry]) -> Iterator[str]:
    """Judge whether Delta pAcc grows over the rounds.

    The rounds of a run are no independent draws, so each pair of runs counts once, by the slope of its gap;
    under the null hypothesis a slope could as well have the other sign.
    """
    found = [slope for curve in label_gaps(entries).values() for slope in slopes(curve)]
    if found:
        grown = sum(slope > 0 for slope in found)
        yield (
            f"the gap of pseudo-label accuracy between {OURS} and FedLoA grows over the rounds in "
            f"{grown} of {len(found)} pairs of runs, by {fmean(found):+.3f} points a round on average "
            f"(sign-flip test on the slopes: p = {sign_flip_p(found):.3f})."
        )


def _errors(entries: Sequence[Entry]) -> Iterator[str]:
    """Say how often the client's and the server's label are wrong together (section 10 of the supplement)."""
    measured = [found for run in joint_errors(entries) for _, found in run]
    if measured:
        mean = {name: fmean(one[name] for one in measured) for name in measured[0]}
        yield (
            f"the client's label is wrong for {mean[OWN]:.1f} % of the images, the server's for "
            f"{mean[RECEIVED]:.1f} %, both for {mean[TOGETHER]:.1f} %, where independent errors would give "
            f"{mean[INDEPENDENT]:.1f} %."
        )
