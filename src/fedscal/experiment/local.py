"""Where the clients of a run are. Embedded: on this machine, in this process or in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from fedscal.core.types import ClientId, Progress
from fedscal.data.cache import identity, prepare
from fedscal.experiment.build import Layout, build_layout, build_schedule, build_site, data_for
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec
from fedscal.models.device import find_device
from fedscal.runtime.local import LocalDriver, WorkerProcess, worker_count
from fedscal.runtime.protocols import Executor
from fedscal.server.rounds import Driver


class Federation(Protocol):
    """Finds the clients of a run, and lets them work."""

    def find(self, progress: Progress) -> Layout:
        """Make the data ready or wait for the sites; return who takes part."""
        ...

    def driver(
        self, layout: Layout, directory: RunDirectory, answered: Callable[[ClientId], None]
    ) -> AbstractContextManager[Driver]:
        """Return who executes the clients."""
        ...


@dataclass(frozen=True)
class Embedded:
    """All clients of a spec on this machine."""

    spec: RunSpec

    def find(self, progress: Progress) -> Layout:
        """Build or decode the images; cut them into clients."""
        prepare_data(self.spec, progress)
        return build_layout(self.spec)

    def driver(
        self, layout: Layout, directory: RunDirectory, answered: Callable[[ClientId], None]
    ) -> LocalDriver:
        """Start as many worker processes as the cores and the round's clients allow."""
        spec = self.spec
        asked = len(build_schedule(spec, layout).sample(layout.clients, spec.seed, 1))
        # On a device of its own a second process would fight for its memory: one, unless more are asked for.
        alone = find_device(spec.device).type != "cpu"
        count = worker_count(spec.workers or int(alone), spec.threads, asked)
        begin = {"spec": {**spec.flat(), **spec.hyper}, "data": identity(data_for(spec))}
        executors: list[Executor] = (
            [WorkerProcess(begin) for _ in range(count)] if count > 1 else [build_site(spec)]
        )
        return LocalDriver(layout.clients, executors, directory.checkpoints.memories, answered)


def prepare_data(spec: RunSpec, progress: Progress) -> None:
    """Build or decode the images of a spec, unless the cache has them."""
    data = data_for(spec)
    progress.stage(f"data: {data.name}", 0)
    prepare(data, progress)
