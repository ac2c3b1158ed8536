"""What the paper claims, asked of our numbers; an answer is given only where every run of it is finished."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from fedscal.paper.printed import ALL, AVERAGE
from fedscal.paper.scores import Score

_WITHIN = 2.0
"""Points that an average may be from the paper's to be called reproduced."""
_ORDER = (
    ("FedLoA", "FedSCAl", "FedSCAl is better than FedLoA"),
    ("neither alignment", "client alignment", "the client's alignment helps"),
    ("neither alignment", "server alignment", "the server's alignment helps"),
    ("client alignment", "both alignments", "both alignments are better than the client's alone"),
    ("server alignment", "both alignments", "both alignments are better than the server's alone"),
    ("fixed threshold", "adaptive threshold", "the adaptive threshold is better than the fixed one"),
)
Averages = Mapping[tuple[str, str], Score]


def claims(found: Sequence[Score]) -> list[str]:
    """Return a sentence for every claim that can be judged."""
    sentences: list[str] = []
    for name in dict.fromkeys(score.block.name for score in found):
        averages = {
            (score.method, score.source): score
            for score in found
            if (score.block.name, score.target) == (name, AVERAGE) and score.source != ALL
        }
        sentences += [f"{name}: {text}" for text in (*_orders(averages), *_distances(averages))]
    return sentences


def _orders(averages: Averages) -> Iterator[str]:
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


def _distances(averages: Averages) -> Iterator[str]:
    known = [score.difference for score in averages.values() if score.paper is not None]
    if known and all(map(math.isfinite, known)):
        near = sum(abs(value) <= _WITHIN for value in known)
        yield f"{near} of {len(known)} averages are within {_WITHIN:g} points of the paper's."
