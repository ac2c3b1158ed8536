"""A run's progress as plain lines, for a log file or for whoever follows a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedscal.core.errors import some
from fedscal.core.text import count, duration
from fedscal.core.types import ClientId
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.metrics import in_short
from fedscal.experiment.records import RoundRecord
from fedscal.server.rule import ServerState

if TYPE_CHECKING:
    from fedscal.experiment.pretrain import Epoch

_LINE_EVERY = 5.0
"""Seconds between two lines about the steps of a stage."""
_NAMED = 20
"""Sites that a line names."""


class Shown(Callback):
    """Progress that a person sees; nobody does, unless it is overridden."""

    def doing(self, text: str) -> None:
        """Say in a few words what is being done between two steps."""


class Lines(Shown):
    """Writes a line per stage, round and warning, and now and then one about the steps of a stage."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._started = self._written = self._began = time.monotonic()
        self._total = self._done = 0
        self._note = ""

    def stage(self, name: str, total: int) -> None:
        """Name the stage."""
        self._total, self._done, self._began, self._note = total, 0, time.monotonic(), ""
        self._write(name)

    def advance(self) -> None:
        """Count the steps, and write a line now and then."""
        self._done += 1
        now = time.monotonic()
        if now - self._written > _LINE_EVERY:
            left = (now - self._began) / self._done * (self._total - self._done)
            spent = f"{now - self._started:.0f} s, {duration(left)} left"
            self._write(f"{self._done}/{self._total}  {self._note}{spent}")
            self._written = now

    def epoch(self, done: Epoch) -> None:
        """Keep what the next line about the steps says."""
        self.doing(str(done))

    def connected(self, there: Sequence[ClientId], missing: Sequence[ClientId]) -> None:
        """Say who of a federation is there, and who is waited for."""
        self._write(waiting_for(missing, there) if missing else f"all sites are there: {_listed(there)}")

    def doing(self, text: str) -> None:
        """Keep it for the next line about the steps."""
        self._note = f"{text}  "

    def round(self, record: RoundRecord, state: ServerState | None) -> None:
        """Write one line per round."""
        spent = time.monotonic() - self._started
        self._write(f"round {record.round}/{self._total}  {in_short(record)}  {spent:.0f} s")

    def warn(self, text: str) -> None:
        """Write a warning."""
        self._write(f"warning: {text}")


def told(progress: bool | Callable[[str], None]) -> list[Callback]:
    """Return who tells a Python program how a run goes: nobody, printed lines, or its own function."""
    if not progress:
        return []
    return [Lines(partial(print, flush=True) if progress is True else progress)]


def waiting_for(missing: Collection[ClientId], there: Collection[ClientId] = ()) -> str:
    """Say which sites are waited for.

    >>> waiting_for(["c"], ["b", "a"]), waiting_for(["a", "b"])
    ('waiting for 1 of 3 sites: c; there: a, b', 'waiting for 2 sites: a, b')
    """
    if not there:
        return f"waiting for {count(len(missing), 'site')}: {_listed(missing)}"
    everybody = count(len(missing) + len(there), "site")
    return f"waiting for {len(missing)} of {everybody}: {_listed(missing)}; there: {_listed(there)}"


def _listed(names: Collection[ClientId]) -> str:
    return some(sorted(names), _NAMED)
