"""Who judges the server's model in a round: everybody, some who are drawn anew, or nobody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedscal.core.lazy import torch
from fedscal.core.rng import stream
from fedscal.core.types import ClientId


@dataclass(frozen=True)
class Judging:
    """Which clients judge in which rounds.

    The source model and the last one are judged by all: a run is known by the two, a site learns its own
    verdict from them, and a site with statistics of its own takes them when it judges.

    Attributes:
        last: the last round.
        clients: how many judge in the rounds between; 0: all.
        every: rounds from one that is judged to the next.
    """

    last: int
    clients: int = 0
    every: int = 1

    def sample(self, clients: Sequence[ClientId], seed: int, round_: int) -> list[ClientId]:
        """Return who judges in a round, drawn by (seed, round): a resumed run draws the same."""
        if round_ in (0, self.last):
            return sorted(clients)
        if round_ % self.every:
            return []
        order = torch.randperm(len(clients), generator=stream(seed, "judging", round_))
        return sorted(clients[int(place)] for place in order[: self.clients or None])
