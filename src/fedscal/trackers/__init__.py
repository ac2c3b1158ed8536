"""Trackers: TensorBoard, MLflow and Weights & Biases follow a run, and its own files stay the truth.

>>> import fedscal
>>> fedscal.adapt(spec, "runs/a", fedscal.trackers.TensorBoard())  # doctest: +SKIP

Each needs the extra of its name. One that fails costs one warning, and moves no bit of the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fedscal.core.errors import UsageError, first_line, nearest, shown
from fedscal.core.extras import ExtraMissing
from fedscal.trackers.mlflow import MLflow
from fedscal.trackers.tensorboard import TensorBoard
from fedscal.trackers.tracker import Result, Start, Tracker, notes, warn
from fedscal.trackers.wandb import WandB

__all__ = ["TRACKERS", "MLflow", "Result", "Start", "TensorBoard", "Tracker", "WandB"]

TRACKERS: Mapping[str, type[TensorBoard | MLflow | WandB]] = {
    one.name: one for one in (TensorBoard, MLflow, WandB)
}


@contextmanager
def following(names: str, resumed: Path | None = None) -> Iterator[list[Tracker]]:
    """Make the trackers that are named, and those that followed a resumed run; close them at the end."""
    made: list[Tracker] = [TRACKERS[name]() for name in parsed(names)]
    with ExitStack() as stack:
        made += _followers(resumed, {one.name for one in made}) if resumed else []
        yield [stack.enter_context(one) for one in made]


def _followers(run: Path, known: Collection[str]) -> list[Tracker]:
    """Return who followed a run before; a package that is missing now does not stop the run."""
    found: list[Tracker] = []
    for name in notes(run):
        if name in TRACKERS and name not in known:
            try:
                found.append(TRACKERS[name]())
            except ExtraMissing as error:
                warn(f"{name} followed this run, and does not any more: {error}")
    return found


def usable(names: str) -> str:
    """Return the named trackers that can be used here; warn once of the others, before many runs do."""
    found = []
    for name in parsed(names):
        tracker = TRACKERS[name]()
        try:
            tracker.prepare()
            found.append(name)
        except Exception as error:
            warn(f"{name} does not follow these runs: {first_line(error)}")
    return ",".join(found)


def parsed(names: str) -> list[str]:
    """Return the names of ``a,b``, each once."""
    asked = list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))
    for name in asked:
        if name not in TRACKERS:
            raise UsageError(f"--track {shown(name)}: no such tracker{nearest(name, TRACKERS)}")
    return asked
