"""What all trackers share: they follow a run, go on with it where they left off, and never disturb it."""

from __future__ import annotations

import logging
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Concatenate, Literal, ParamSpec, Self, TypeVar

from fedscal.core import files
from fedscal.core.convert import convert, dump
from fedscal.core.documents import read_json, read_record
from fedscal.core.errors import first_line
from fedscal.core.options import Value
from fedscal.experiment.answers import ANSWERS, Answers
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.load import load_run
from fedscal.experiment.records import RoundRecord, RunSummary, Tracked
from fedscal.experiment.run_directory import RunDirectory
from fedscal.report.verdict import judge
from fedscal.trackers.flat import round_numbers, summary_numbers, summary_words

if TYPE_CHECKING:
    from fedscal.experiment.source import SourceModel
    from fedscal.server.rule import ServerState

_LOG = logging.getLogger(__name__)
_NOTES = "trackers.json"
_SMALL_FILES = ("spec.toml", "summary.json", "report.html")
_LARGEST = 10_000_000
"""Bytes of a file that still counts as small."""
Ending = Literal["finished", "failed"]
P = ParamSpec("P")
T = TypeVar("T", bound="Tracker")


@dataclass(frozen=True)
class Start:
    """What a tracker is told before the first round.

    Attributes:
        directory: the run's directory.
        keys: the keys of the run.
        before: what it noted when it followed this run the last time, if it did.
    """

    directory: Path
    keys: Mapping[str, Value]
    before: Tracked | None


@dataclass(frozen=True)
class Result:
    """What came of a run: numbers and words by name, and the verdict in a sentence or two."""

    round: int
    numbers: Mapping[str, float]
    words: Mapping[str, str]
    verdict: str


def _careful(event: Callable[Concatenate[T, P], None]) -> Callable[Concatenate[T, P], None]:
    """Let no trouble of a tracker reach the run: it costs one warning, and the tracker is told no more."""

    @wraps(event)
    def called(self: T, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.lost:
            return
        try:
            event(self, *args, **kwargs)
        except Exception as error:
            self.lost = True
            warn(f"{self.name} does not follow this run any more: {first_line(error)}")
            if logging.getLogger("fedscal").handlers:  # events.log, while the run goes on
                _LOG.warning("%s", self.name, exc_info=error)

    return called


def warn(text: str) -> None:
    """Print a warning, whoever listens: the run's own callbacks know nothing of trackers."""
    sys.stderr.write(f"warning: {text}\n")


class Tracker(Callback):
    """Follows a run. A tracker of your own has a ``name`` and the four functions below.

    As a callback it closes the tracked run at the end of the run. In a ``with`` statement it does so at the
    end of that: what was written meanwhile, such as the report, goes along, and an error marks it as failed.

    Attributes:
        lost: whether something went wrong; it is told no more then.
    """

    name: ClassVar[str]

    def __init__(self, also: Sequence[str] = ()) -> None:
        self.lost = False
        self._also = tuple(also)
        self._held = self._followed = False
        self._last = -1
        self._run = ""

    @abstractmethod
    def open(self, start: Start) -> tuple[str, int]:
        """Begin a tracked run, or go on with one; return its name there and the last round that it has.

        -1 is the round of a new one. Rounds up to the last are not logged again.
        """

    @abstractmethod
    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a round. They must be safe when this returns."""

    @abstractmethod
    def conclude(self, result: Result) -> None:
        """Take what came of the run."""

    @abstractmethod
    def close(self, files: Sequence[Path], ending: Ending) -> None:
        """Take the run's small files, and close the tracked run."""

    def prepare(self) -> None:
        """Find out whether it can be used at all; make what several runs at a time would make at once."""

    @_careful
    def place(self, directory: RunDirectory) -> None:
        """Keep where the run's files are."""
        self._path = directory.path

    @_careful
    def begin(self, experiment: Experiment, source: SourceModel) -> None:
        """Begin, or go on."""
        before = notes(self._path).get(self.name)
        self._run, self._last = self.open(Start(self._path, experiment.spec.flat(), before))
        self._followed = True
        self._note()

    @_careful
    def round(self, record: RoundRecord, state: ServerState | None) -> None:
        """Hand a round on, unless it was handed on before."""
        if record.round > self._last:
            self.log(record.round, round_numbers(record))
            self._last = record.round
            self._note()

    @_careful
    def end(self, summary: RunSummary, state: ServerState) -> None:
        """Hand the result on."""
        verdict = judge(load_run(self._path)).headline
        self.conclude(Result(summary.rounds, summary_numbers(summary), summary_words(summary), verdict))
        if not self._held:
            self._close("finished")

    def __enter__(self) -> Self:
        self._held = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False
        self._close("failed" if kind else "finished")

    @_careful
    def _close(self, ending: Ending) -> None:
        if self._followed:
            self._followed = False
            self.close(small_files(self._path, self._also), ending)

    def _note(self) -> None:
        """Write down what a resumed run must know."""
        noted = {**notes(self._path), self.name: Tracked(run=self._run, round=self._last)}
        files.write_json(self._path / _NOTES, {name: dump(one) for name, one in noted.items()})


def notes(run: Path) -> Mapping[str, Tracked]:
    """Return who has followed a run, by name; notes that cannot be read are no notes."""
    try:
        return convert(read_json(run / _NOTES), dict[str, Tracked])
    except (OSError, ValueError):
        return {}


def small_files(run: Path, also: Sequence[str] = ()) -> list[Path]:
    """Return the files that go along: small ones without images, and others only if they are asked for.

    A page that shows images of the clients stays where it is.
    """
    pictures = {"report.html"} if _has_pictures(run) else set()
    small = [run / name for name in _SMALL_FILES if name not in pictures]
    small = [path for path in small if path.is_file() and path.stat().st_size <= _LARGEST]
    return small + [path for pattern in also for path in sorted(run.glob(pattern)) if path.is_file()]


def _has_pictures(run: Path) -> bool:
    """Whether somebody asked for pictures in the page, of whatever model."""
    try:
        return bool(read_record(run / ANSWERS, Answers).examples)
    except (OSError, ValueError):
        return False
