"""Which sites of a federation are there and which are missing, in words for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from fedscal.core.errors import some
from fedscal.core.text import count
from fedscal.flower.output import Say

_LOOK = 10.0
"""Seconds between two looks at which sites are connected."""
_NAMED = 20


def connected(there: Collection[str], missing: Collection[str]) -> str:
    """Say who is connected.

    >>> connected(["a", "b"], ["c"]), connected([], ["c"])
    ('2 of 3 sites connected: a, b; missing: c', '0 of 1 site connected; missing: c')
    """
    start = f"{len(there)} of {count(len(there) + len(missing), 'site')} connected"
    named = f": {_listed(there)}" if there else ""
    return start + named + (f"; missing: {_listed(missing)}" if missing else "")


def _listed(names: Collection[str]) -> str:
    return some(sorted(names), _NAMED)


@dataclass
class Presence:
    """Tells which sites are connected to a server, whenever that changes.

    Attributes:
        names: the sites whose keys the server has; without keys sites are counted.
        online: returns the names of the connected ones, empty for one without; None if it is not known now.
        say: who is told.
    """

    names: Collection[str]
    online: Callable[[], list[str] | None]
    say: Say
    _next_look: float = 0.0
    _told: str = ""

    def look(self) -> None:
        """Look once in a while."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LOOK
        online = self.online()
        text = self._told if online is None else self._described(online)
        if text != self._told:
            self._told = text
            self.say(text)

    def _described(self, online: Collection[str]) -> str:
        if not self.names:
            return f"{count(len(online), 'site')} connected"
        there = set(online) & set(self.names)
        return connected(there, set(self.names) - there)
