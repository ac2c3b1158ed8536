"""Where the clients of a run are. Embedded: on this machine, in this process or in worker processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from fedscal.build import Layout, build_layout, build_schedule, build_site, data_for
from fedscal.data.benchmark import Progress
from fedscal.data.cache import prepare
from fedscal.drivers.in_process import Executor, InProcess, WorkerProcess, worker_count
from fedscal.federation import Driver
from fedscal.record import RunDirectory
from fedscal.spec import RunSpec
from fedscal.types import ClientId


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
        data = data_for(self.spec)
        progress.stage(f"data: {data.name}", 0)
        prepare(data)
        return build_layout(self.spec)

    def driver(
        self, layout: Layout, directory: RunDirectory, answered: Callable[[ClientId], None]
    ) -> InProcess:
        """Start as many worker processes as the cores and the round's clients allow."""
        spec = self.spec
        asked = len(build_schedule(spec, layout).sample(layout.clients, spec.seed, 1))
        count = worker_count(spec.workers, spec.threads, asked)
        keys = {**spec.flat(), **spec.hyper}
        executors: list[Executor] = (
            [WorkerProcess(keys) for _ in range(count)] if count > 1 else [build_site(spec)]
        )
        return InProcess(layout.clients, executors, directory.checkpoints.memories, answered)
