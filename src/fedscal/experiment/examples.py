"""Images that are worth a look: whose answer changed, sure mistakes, and doubtful answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedscal.core.errors import shown
from fedscal.data import cache
from fedscal.data.benchmark import Benchmark
from fedscal.data.folders.benchmark import Folder
from fedscal.data.picture import thumbnail
from fedscal.experiment.answers import Example, Kind
from fedscal.experiment.ask import Asked

_EACH = 12
"""Examples of each kind, over all domains."""
_SIDE = 96
"""Pixels of a picture's longer side, at most."""
_DIGITS = 4


@dataclass(frozen=True, order=True)
class _Pick:
    """An image of a domain; less is worth more: first the best of every domain, then the second, and so on.

    Attributes:
        rank: its place among those of its domain.
        cost: the lower, the more it is an example of its kind.
        place: its number in what was asked about the domain.
    """

    rank: int
    cost: float
    domain: str
    place: int


def pick_examples(asked: Mapping[str, Asked], data: Benchmark) -> list[Example]:
    """Return examples of each kind, spread over the domains."""
    chosen: dict[Kind, list[_Pick]] = {}
    for domain, one in asked.items():
        for kind, (eligible, cost) in _kinds(one).items():
            chosen.setdefault(kind, []).extend(_first(domain, eligible, cost))
    best = [(kind, pick) for kind, picks in chosen.items() for pick in sorted(picks)[:_EACH]]
    pixels = {domain: cache.images(data, domain) for domain in {pick.domain for _, pick in best}}
    return [
        _example(kind, pick, asked[pick.domain], data, pixels[pick.domain][_row(pick, asked)][0])
        for kind, pick in best
    ]


def _kinds(asked: Asked) -> dict[Kind, tuple[Tensor, Tensor]]:
    """Return by kind which images are eligible, and what each costs."""
    after, everyone = asked.after, torch.ones_like(asked.marked)
    kinds: dict[Kind, tuple[Tensor, Tensor]] = {
        "changed": (asked.before.answers != after.answers, -after.confidence)
    }
    if asked.labels is not None:
        kinds["mistake"] = (asked.labels != after.answers, -after.confidence)
    return {**kinds, "doubtful": (everyone, after.margin)}


def _first(domain: str, eligible: Tensor, cost: Tensor) -> Iterator[_Pick]:
    places = eligible.nonzero().flatten()
    best = places[cost[places].argsort(stable=True)[:_EACH]]
    for rank, place in enumerate(best.tolist()):
        yield _Pick(rank, float(cost[place]), domain, place)


def _row(pick: _Pick, asked: Mapping[str, Asked]) -> Tensor:
    return asked[pick.domain].rows[pick.place : pick.place + 1]


def _example(kind: Kind, pick: _Pick, asked: Asked, data: Benchmark, pixels: Tensor) -> Example:
    names, place = data.classes, pick.place
    return Example(
        kind=kind,
        domain=pick.domain,
        client=asked.clients[place],
        name=shown(_name(data, pick.domain, int(asked.rows[place]))),
        before=names[int(asked.before.answers[place])],
        after=names[int(asked.after.answers[place])],
        confidence=round(float(asked.after.confidence[place]), _DIGITS),
        label=None if asked.labels is None else names[int(asked.labels[place])],
        png=thumbnail(pixels, _SIDE),
    )


def _name(data: Benchmark, domain: str, row: int) -> str:
    """Return an image's file in the folder of its site, or its number in its domain."""
    return data.folder.file_name(domain, row) if isinstance(data.folder, Folder) else str(row)
