"""TensorBoard: event files beside the run, or below a folder of logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fedscal.core.extras import from_extra
from fedscal.core.table import Table
from fedscal.experiment.records import AVERAGE
from fedscal.runtime.signals import SIGNALS
from fedscal.trackers.tracker import Ending, Result, Start, Tracker

_COMPARED = (f"accuracy/server/{AVERAGE}", *(f"signals/{name}" for name in SIGNALS))
"""What TensorBoard's table of hyper-parameters sets beside the keys."""


class TensorBoard(Tracker):
    """Writes event files: a scalar by name and round, the keys as hyper-parameters, the verdict as text.

    Args:
        logdir: a folder that gets a subfolder for each run, by its name; ``tensorboard`` in the run's own
            directory if not given.
    """

    name: ClassVar[str] = "tensorboard"

    def __init__(self, logdir: Path | str | None = None) -> None:
        super().__init__()
        with from_extra("tensorboard", "tracking in TensorBoard"):
            from torch.utils import tensorboard
        self._package: Any = tensorboard
        self._logdir = logdir

    def open(self, start: Start) -> tuple[str, int]:
        """Open a new event file, in a folder that may have some already."""
        own = start.directory / self.name
        folder = Path(self._logdir) / start.directory.resolve().name if self._logdir else own
        last = last_round(folder)
        self._writer = self._package.SummaryWriter(str(folder))
        begun, keys, self._ended = self._package.summary.hparams(
            dict(start.keys), dict.fromkeys(_COMPARED, 0)
        )
        if last < 0:
            self._writer.file_writer.add_summary(begun)
            self._writer.file_writer.add_summary(keys)
        return str(folder), last

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Write the scalars."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def conclude(self, result: Result) -> None:
        """Write the verdict and the summary as text."""
        rows = [(name, str(value)) for name, value in {**result.words, **result.numbers}.items()]
        text = Table(result.verdict, ("name", "value"), rows).markdown()
        self._writer.add_text("summary", text, result.round)
        self._writer.file_writer.add_summary(self._ended)

    def close(self, files: Sequence[Path], ending: Ending) -> None:
        """Close the event file; the run's files are beside it."""
        self._writer.close()


def last_round(folder: Path) -> int:
    """Return the last round that event files tell of; -1 if there is none."""
    with from_extra("tensorboard", "tracking in TensorBoard"):
        from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
    if not folder.is_dir():
        return -1
    events = EventAccumulator(str(folder), size_guidance={SCALARS: 0}).Reload()
    return max((event.step for tag in events.Tags()[SCALARS] for event in events.Scalars(tag)), default=-1)
