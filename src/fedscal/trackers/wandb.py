"""Weights & Biases: a run of a project, online or in files that ``wandb sync`` uploads later."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from fedscal.core.errors import UsageError
from fedscal.core.extras import from_extra
from fedscal.trackers.tracker import Ending, Result, Start, Tracker

_PROJECT = "fedscal"
_PATIENCE = {"init_timeout": 30, "finish_timeout": 60, "finish_timeout_raises": True}
"""Seconds that a service which is not there may hold a run up; what is not uploaded stays in files."""
_LEFT_OUT = {"console": "off", "disable_git": True, "disable_code": True, "save_code": False}
"""What the service would take by itself and a run does not hand out: its output, and the code around it."""


class WandB(Tracker):
    """Logs to Weights & Biases: keys as config, numbers by round, the summary, the small files.

    ``WANDB_MODE=offline`` writes files only. Its other variables and settings hold, too.

    Args:
        project: ``WANDB_PROJECT`` or ``fedscal`` if not given.
        entity: the user or team; your own if not given.
        also: further files of the run's directory to upload, as patterns: ``model/last.*``.
    """

    name: ClassVar[str] = "wandb"

    def __init__(
        self, project: str | None = None, entity: str | None = None, also: Sequence[str] = ()
    ) -> None:
        super().__init__(also)
        # W&B reports errors of itself to its makers, with parts of what it was called with.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with from_extra("wandb", "tracking in Weights & Biases"):
            import wandb
        self._package: Any = wandb
        self._project = project or os.environ.get("WANDB_PROJECT") or _PROJECT
        self._entity = entity

    def prepare(self) -> None:
        """See that somebody is logged in: W&B would ask in the middle of a run, and wait."""
        wandb = self._package
        online = wandb.setup().settings.mode in ("online", "shared", "run")
        if online and wandb.run is None and not wandb.login(prompt=False, verify=False):
            raise UsageError("nobody is logged in. Type: wandb login, or set WANDB_MODE=offline")

    def open(self, start: Start) -> tuple[str, int]:
        """Begin a run, or go on with the noted one."""
        self.prepare()
        name = start.before.run if start.before else secrets.token_hex(4)
        self._service = self._package.init(
            project=self._project,
            entity=self._entity,
            id=name,
            name=start.directory.resolve().name,
            dir=str(start.directory),
            config=dict(start.keys),
            resume="allow",
            reinit="create_new",
            settings=self._package.Settings(silent=True, **_PATIENCE, **_LEFT_OUT),
        )
        if self._service.offline:  # there is nobody to ask
            return name, start.before.round if start.before else -1
        return name, self._service.step - 1 if self._service.resumed else -1

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Log a round; the step is the round, so that the service knows what it has."""
        self._service.log(dict(numbers), step=round_, commit=True)

    def conclude(self, result: Result) -> None:
        """Write the summary."""
        self._service.summary.update({**result.numbers, **result.words, "verdict": result.verdict})

    def close(self, files: Sequence[Path], ending: Ending) -> None:
        """Upload the files, and end the run."""
        folder = Path(self._service.dir)
        for path in files:  # copied by us: W&B says a warning for each file that it copies or links itself
            copied = shutil.copyfile(path, folder / path.name)
            self._service.save(str(copied), base_path=str(folder), policy="now")
        self._service.finish(exit_code=0 if ending == "finished" else 1)
