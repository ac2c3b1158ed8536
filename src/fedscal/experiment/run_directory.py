"""The run directory: what a run leaves behind, written so that a kill at any moment loses nothing."""

from __future__ import annotations

import logging
import os
import platform
import shlex
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.documents import read_record
from fedscal.core.errors import ModelRefused, UsageError
from fedscal.core.lazy import torch
from fedscal.core.types import ClientId, Weights
from fedscal.core.version import __version__
from fedscal.data.cache import Identity, identity, refuse_others
from fedscal.experiment.checkpoint import Checkpoint, Checkpoints
from fedscal.experiment.journal import CLIENTS, Journal
from fedscal.experiment.records import Environment, Machine, RoundRecord, RunSummary
from fedscal.experiment.shown import run_table
from fedscal.experiment.spec import RunSpec, read_recipe
from fedscal.models.device import find_device, processor
from fedscal.models.store import load_model, read_card
from fedscal.runtime.local import worker_count

if TYPE_CHECKING:
    from fedscal.experiment.experiment import Experiment

_MAY = "the result may differ in the last bits"
_WILL = "the result will not be bit-identical to that of an uninterrupted run"
_DECIDING = {
    "fedscal": _MAY,
    "python": _MAY,
    "torch": _MAY,
    "machine": _WILL,
    "processor": _WILL,
    "device": _WILL,
    "threads": _WILL,
}
"""What of an environment decides bits, and what a run must expect that goes on with another."""
SITES = "sites"
"""The folder beside a run's models that holds what its sites have of their own."""
T = TypeVar("T")


class RunDirectory:
    """One run: spec.toml, metrics.jsonl, clients/, summary.json, checkpoints/, model/, report.html."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = Journal(path / "metrics.jsonl")
        self.checkpoints = Checkpoints(path / "checkpoints")

    def __repr__(self) -> str:
        return run_table(self.path).text()

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return run_table(self.path).html()

    @property
    def started(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / "spec.toml").exists()

    @property
    def finished(self) -> bool:
        """Whether a run came to its end here."""
        return (self.path / "summary.json").exists()

    def begin(self, experiment: Experiment) -> None:
        """Write down what is going to be run, and where."""
        files.write_json(self.path / "environment.json", dump(environment(experiment)))
        files.write_bytes(self.path / "spec.toml", experiment.spec.to_toml().encode())

    def tidy(self) -> None:
        """Remove what a killed run left half written; the caller holds the directory."""
        kept = ("checkpoints", "checkpoints/memory", "checkpoints/own")
        folders = ("", CLIENTS, "model", f"model/{SITES}", *kept)
        files.remove_unfinished(*(self.path / folder for folder in folders))

    @contextmanager
    def log(self) -> Iterator[None]:
        """Keep what the package logs, tracebacks of failed clients among it, in ``events.log``."""
        logger = logging.getLogger("fedscal")
        path = self.path / "events.log"
        with files.writing(path):
            handler = logging.FileHandler(path)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)
            handler.close()

    def spec(self) -> RunSpec:
        """Read the spec of the run in this directory."""
        if not self.started:
            lacking = "holds no run: there is no spec.toml."
            raise UsageError(files.fault(self.path, "run directory", lacking))
        return RunSpec.make(**read_recipe(self.path / "spec.toml"))

    def differences(self, experiment: Experiment) -> list[str]:
        """Say what decides bits and is not as it was when the run was begun; refuse other data."""
        before, now = self._begun_with(), environment(experiment)
        if before.spec_sha256 != now.spec_sha256:
            raise UsageError(f"{self.path / 'spec.toml'} was changed after the run was begun; undo that.")
        refuse_others(experiment.data, Identity(before.data_sha256, before.images), str(self.path))
        if before.source_model_sha256 != now.source_model_sha256:
            raise ModelRefused(
                f"{experiment.spec.source_model} is not the model that {self.path} was begun with."
            )
        return differences(before, replace(now, threads=experiment.execution.threads))

    def elsewhere(self) -> list[str]:
        """Say in what this machine differs from the one that the run was begun on."""
        spec = self.spec()  # first: it says if there is no run
        return differences(self._begun_with(), machine(spec))

    def _begun_with(self) -> Environment:
        return _typed(self.path / "environment.json", Environment, self.how_to_start_anew())

    def rounds(self) -> Sequence[RoundRecord]:
        """Read the rounds up to the first whose line is not whole."""
        return self.journal.read().rounds

    def go_back(self) -> tuple[Checkpoint | None, list[RoundRecord]]:
        """Return the last state that is whole and the rounds up to it, and let go of what came after them.

        There is no state before the first round is saved. Where one was saved and none is whole, nothing is
        touched: a user may have a copy of the missing file, and doing everything again is for him to decide.
        """
        record = self.journal.read()
        try:
            found = self.checkpoints.latest(record.require)
            if not found and len(record.lines) > 1:
                raise ModelRefused(f"{self.checkpoints.folder} holds no checkpoint.")
        except ModelRefused as error:
            raise ModelRefused(f"{error} {self.how_to_start_anew()}") from error
        last = found.round if found else -1
        self.journal.restart(record.lines[: last + 1])
        self.checkpoints.forget_after(last)
        return found, list(record.rounds[: last + 1])

    def how_to_start_anew(self) -> str:
        """Return what a user can do about a run that cannot go on."""
        recipe = shlex.quote(str(self.path / "spec.toml"))
        return (
            "Put a whole copy of the file back; or start anew: fedscal run "
            f"{recipe} --out OTHER, or remove {self.path} and repeat the command that began it."
        )

    def summary(self) -> RunSummary:
        """Read the summary of a finished run."""
        if not self.finished:
            raise UsageError(f"{self.path} holds no finished run.")
        path = self.path / "summary.json"
        mend = f"Remove it; fedscal run --resume {shlex.quote(str(self.path))} writes it again."
        return _typed(path, RunSummary, mend)

    def selected(self) -> Weights | None:
        """Read the model of the round that is chosen without labels; None of a method that keeps several."""
        folder = self.path / "model"
        return load_model(folder, "selected")[0] if (folder / "selected.safetensors").exists() else None

    def at_site(self, client: ClientId) -> Weights:
        """Read what a site has of its own in the model that is delivered to it: its statistics above all."""
        return load_model(self.path / "model" / SITES, client)[0]

    def save_models(self, contents: Iterable[tuple[str, bytes]], beside: str = "") -> None:
        """Write files into ``model/``, or a folder in it, each at once."""
        files.write_all(self.path / "model" / beside, contents)

    def forget_models(self, beginning: str, but: Container[str]) -> None:
        """Remove the models from ``model/`` whose names begin so, but those that are named."""
        for path in (self.path / "model").glob(f"{beginning}*"):
            if path.stem not in but:
                path.unlink()


def _typed(path: Path, kind: type[T], mend: str) -> T:
    """Read a file of a run; say how to mend one that is not what a run writes."""
    try:
        return read_record(path, kind)
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read ({error.strerror}). {mend}") from error
    except ValueError as error:
        raise ModelRefused(f"{path} is not what a run writes: {error}. {mend}") from error


def environment(experiment: Experiment) -> Environment:
    """Return where a run happens and with what: an allow-list, never the process's environment."""
    spec = experiment.spec
    return Environment(
        **vars(machine(spec)),
        **vars(identity(experiment.data)),
        spec_sha256=spec.digest(),
        source_model_sha256=read_card(spec.source_model).file_sha256 if spec.source_model else None,
    )


def machine(spec: RunSpec) -> Machine:
    """Return what of this machine can decide bits or seconds of a run."""
    return Machine(
        fedscal=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        platform=platform.platform(),
        machine=platform.machine(),
        processor=processor(),
        cores=os.cpu_count(),
        threads=spec.threads,
        device=find_device(spec.device).type,
        workers=worker_count(spec.workers, spec.threads, 10**6),
    )


def differences(before: Machine, now: Machine) -> list[str]:
    """Say what decides bits and has changed; what an older run did not record cannot be compared."""
    before = replace(before, device=before.device or "cpu")  # there was no other when runs did not say it
    pairs = {name: (getattr(before, name), getattr(now, name)) for name in _DECIDING}
    changed = {name: pair for name, pair in pairs.items() if pair[0] not in (None, pair[1])}
    return [f"{name} was {was} and is {is_}: {_DECIDING[name]}" for name, (was, is_) in changed.items()]
