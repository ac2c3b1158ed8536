"""Says what a run is doing while it does it, in ``progress.json``, for whoever looks on."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.documents import read_record
from fedscal.core.errors import OutOfSpace
from fedscal.core.types import ClientId
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.records import RoundRecord, UnderWay
from fedscal.server.rule import ServerState

if TYPE_CHECKING:
    from fedscal.experiment.experiment import Experiment
    from fedscal.experiment.source import SourceModel

PROGRESS = "progress.json"
_STEPS = 0.5
"""Seconds between two counts of steps that are written."""
_MANY = 100
"""From so many clients on, their answers are written as such counts are: each time all names are."""


def read_progress(run: Path) -> UnderWay | None:
    """Return what a run last said of itself; of one that was killed it is still there."""
    try:
        return read_record(run / PROGRESS, UnderWay)
    except (OSError, ValueError):
        return None


class Announcer(Callback):
    """Writes every event down in place of the last, while its ``with`` lasts; then nothing of it is left.

    Nothing depends on it, so a fault of it ends nothing.
    """

    def __init__(self, run: Path) -> None:
        self._path = run / PROGRESS
        self._now = UnderWay(started=time.time(), since=time.time())
        self._answered: list[ClientId] = []
        self._said = time.monotonic()

    def stage(self, name: str, total: int) -> None:
        """Name the stage."""
        self._say(stage=name, total=total, done=0, since=time.time())

    def advance(self) -> None:
        """Count a step; there may be thousands in a second, and who looks on does not look so often."""
        self._now = replace(self._now, done=self._now.done + 1)
        self._say_now_and_then()

    def connected(self, there: Sequence[ClientId], missing: Sequence[ClientId]) -> None:
        """Say which sites are there."""
        self._say(connected=tuple(there), missing=tuple(missing))

    def begin(self, experiment: Experiment, source: SourceModel) -> None:
        """From now on it is about rounds; the source model comes first."""
        self._say(round=0)

    def asked(self, round_: int, clients: Sequence[ClientId]) -> None:
        """Say who takes part in the round that begins."""
        self._answered = []
        self._say(round=round_, since=time.time(), asked=tuple(clients))

    def client(self, client: ClientId) -> None:
        """Say who has answered; of many, who has answered so far."""
        self._answered.append(client)
        if len(self._now.asked) > _MANY:
            self._say_now_and_then()
        else:
            self._say()

    def round(self, record: RoundRecord, state: ServerState | None) -> None:
        """Count a round; the time of one that was on record was spent by an earlier process."""
        spent = 0.0 if state else record.seconds.adapt + record.seconds.evaluate
        self._say(done=record.round, earlier=self._now.earlier + spent)

    def __enter__(self) -> Announcer:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _say_now_and_then(self) -> None:
        if time.monotonic() - self._said > _STEPS:
            self._say()

    def _say(self, **changes: Any) -> None:
        self._now = replace(self._now, answered=tuple(self._answered), **changes)
        self._said = time.monotonic()
        # A directory that a user removed is not made again.
        with contextlib.suppress(OutOfSpace, OSError):
            if self._path.parent.is_dir():
                files.write_bytes(self._path, json.dumps(dump(self._now)).encode(), lasting=False)
