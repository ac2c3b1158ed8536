"""MLflow: a run of an experiment, on a tracking server or in a local data base."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedscal.core.extras import from_extra
from fedscal.trackers.tracker import Ending, Result, Start, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient

_EXPERIMENT = "fedscal"
_IN_EVERY_ROUND = "failures"
_DESCRIPTION = "mlflow.note.content"
_AT_ONCE = 100
"""Numbers or keys in a request: a server takes no more keys."""
_LONGEST = 5000
"""Characters of a key's value or of a tag."""
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
"""A server that is not there holds a run up for seconds; by MLflow's own values it would be minutes."""


class MLflow(Tracker):
    """Logs to MLflow: keys as parameters, a metric by name and round, the verdict, the small files.

    Args:
        uri: the tracking server or data base; ``MLFLOW_TRACKING_URI`` or MLflow's default if not given.
        experiment: its name; ``MLFLOW_EXPERIMENT_NAME`` or ``fedscal`` if not given.
        also: further files of the run's directory to upload, as patterns: ``model/last.*``.
    """

    name: ClassVar[str] = "mlflow"

    def __init__(
        self, uri: str | None = None, experiment: str | None = None, also: Sequence[str] = ()
    ) -> None:
        super().__init__(also)
        # MLflow reports the use of itself to its makers: images that may not leave deserve better manners.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with from_extra("mlflow", "tracking in MLflow"):
            import mlflow
        self._package: Any = mlflow
        self._uri = uri
        self._experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT

    def prepare(self) -> None:
        """Make data base and experiment, which several runs must not do at the same time."""
        with _quick_and_quiet():
            self._experiment_id(self._package.MlflowClient(self._uri))

    def open(self, start: Start) -> tuple[str, int]:
        """Begin a run, or go on with the noted one if this server has it."""
        with _quick_and_quiet():
            self._client = self._package.MlflowClient(self._uri)
            known = self._find(start.before.run) if start.before else None
            self._id = known or self._begin(start)
            steps = [one.step for one in self._client.get_metric_history(self._id, _IN_EVERY_ROUND)]
        return self._id, max(steps, default=-1)

    def _find(self, run: str) -> str | None:
        try:
            if self._client.get_run(run).info.lifecycle_stage != "active":
                return None
        except self._package.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        self._client.update_run(run, status="RUNNING")
        return run

    def _begin(self, start: Start) -> str:
        name = start.directory.resolve().name
        run: str = self._client.create_run(self._experiment_id(self._client), run_name=name).info.run_id
        Param = self._package.entities.Param  # noqa: N806
        keys = [Param(key, str(value)[:_LONGEST]) for key, value in start.keys.items()]
        for some in _portions(keys):
            self._client.log_batch(run, params=some)
        return run

    def _experiment_id(self, client: MlflowClient) -> str:
        found = client.get_experiment_by_name(self._experiment)
        return str(found.experiment_id if found else client.create_experiment(self._experiment))

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Log the metrics of a round."""
        with _quick_and_quiet():
            self._log(round_, numbers)

    def _log(self, round_: int, numbers: Mapping[str, float]) -> None:
        Metric, now = self._package.entities.Metric, int(time.time() * 1000)  # noqa: N806
        # The number that tells whether a round is there comes last.
        ordered = sorted(numbers.items(), key=lambda pair: pair[0] == _IN_EVERY_ROUND)
        for some in _portions([Metric(name, value, now, round_) for name, value in ordered]):
            self._client.log_batch(self._id, metrics=some)

    def conclude(self, result: Result) -> None:
        """Log the summary as metrics and tags, the verdict as the run's description."""
        with _quick_and_quiet():
            self._log(result.round, result.numbers)
            for name, text in {**result.words, _DESCRIPTION: result.verdict}.items():
                self._client.set_tag(self._id, name, text[:_LONGEST])

    def close(self, files: Sequence[Path], ending: Ending) -> None:
        """Upload the files, and say how the run ended."""
        with _quick_and_quiet():
            for path in files:
                self._client.log_artifact(self._id, str(path))
            self._client.set_terminated(self._id, "FINISHED" if ending == "finished" else "FAILED")


def _portions(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[first : first + _AT_ONCE] for first in range(0, len(rows), _AT_ONCE))


@contextmanager
def _quick_and_quiet() -> Iterator[None]:
    """Bound the waiting for a server, unless the user has, and leave out how a data base is made."""
    mine = {name: value for name, value in _PATIENCE.items() if name not in os.environ}
    logger = logging.getLogger("mlflow")
    level = logger.level
    os.environ.update(mine)
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name in mine:
            del os.environ[name]
