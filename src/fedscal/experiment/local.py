"""Where the clients of a run are, and clients on this machine: in this process or in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from fedscal.core.convert import dump
from fedscal.core.types import ClientId
from fedscal.data import cache
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.experiment import Experiment, Layout
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.source import source_model
from fedscal.models.device import find_device
from fedscal.runtime.local import LocalDriver, WorkerProcess, worker_count
from fedscal.runtime.protocols import Executor
from fedscal.server.rounds import Driver


class Federation(Protocol):
    """Knows the clients of a run, and executes them."""

    def clients(self, experiment: Experiment, events: Callback) -> Layout:
        """Prepare the data, or wait for the sites; return who takes part."""
        ...

    def driver(
        self, experiment: Experiment, directory: RunDirectory, answered: Callable[[ClientId], None]
    ) -> AbstractContextManager[Driver]:
        """Return who executes the clients."""
        ...


@dataclass(frozen=True)
class Local:
    """All clients of a spec on this machine."""

    def clients(self, experiment: Experiment, events: Callback) -> Layout:
        """Build or decode the images; cut them into clients."""
        experiment.prepare(events)
        return experiment.clients_of_data()

    def driver(
        self, experiment: Experiment, directory: RunDirectory, answered: Callable[[ClientId], None]
    ) -> LocalDriver:
        """Start as many worker processes as the cores and the round's clients allow."""
        spec, layout = experiment.execution, experiment.layout
        asked = len(experiment.schedule.sample(layout.clients, spec.seed, 1))
        # On a device of its own a second process would fight for its memory: one, unless more are asked for.
        alone = find_device(spec.device).type != "cpu"
        count = worker_count(spec.workers or int(alone), spec.threads, asked)
        begin = {"spec": spec.all_keys(), "data": dump(cache.identity(experiment.data))}
        executors: list[Executor] = (
            [WorkerProcess(begin) for _ in range(count)]
            if count > 1
            else [experiment.service(layout, lambda: source_model(experiment).known)]
        )
        return LocalDriver(layout.clients, executors, directory.checkpoints.memories, answered)
