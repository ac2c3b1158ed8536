"""Where the time of a client with five images goes: its passes, and what it costs beside them.

    python -m benchmarks.small_clients [clients] [method ...]

The round of ``benchmarks.scale``, played again and again in one process with one thread. Functions are timed
in place, in CPU seconds, each without what is timed inside it; a part's milliseconds are the median over the
rounds. Shares are of their sum.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.scale import images_of, spec_of
from fedscal.client import training
from fedscal.client.descent import Descent
from fedscal.client.term import Objective
from fedscal.core import rng, weights
from fedscal.core.rng import compute_threads
from fedscal.core.spool import Spool
from fedscal.core.types import ClientId, Memory
from fedscal.data.views import AugmentedViews
from fedscal.experiment.experiment import Experiment
from fedscal.models.network import Network
from fedscal.runtime import service
from fedscal.runtime.local import LocalDriver
from fedscal.server import screen
from fedscal.server.rounds import Storage, federate
from fedscal.server.rule import Briefing

METHODS = ("fedscal", "fedloa")
_CLIENTS, _ROUNDS = 60, 5
_REST = "the rest"
PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "passes": ((Network, "forward"), (Tensor, "backward")),
    "views": ((AugmentedViews, "weak"), (AugmentedViews, "strong"), (AugmentedViews, "evaluate")),
    "loss terms": ((Objective, "prepare"), (Objective, "loss"), (Objective, "readings")),
    "optimiser": ((Descent, "step"),),
    "network: values, mode": ((Network, "load"), (Network, "train")),
    "reply: copy, finite, drift": (
        *((weights, "snapshot"), (weights, "first_not_finite"), (weights, "distance")),
    ),
    "random streams, batches": ((rng, "stream"), (training, "batches")),
    "client: the rest": ((service, "local_update"),),
    "server: check": ((screen, "fault"),),
    "server: keep": ((Spool, "keep"),),
    "server: merge": ((weights, "mean"),),
}


class _Clock:
    """CPU seconds by part, each without those of the parts inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = [0.0]

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its time added to a part."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.process_time()
            self._inside.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.process_time() - started
                self.seconds[part] += whole - self._inside.pop()
                self._inside[-1] += whole

        return call


class _Forgetful:
    """Memories of clients that never took part before."""

    def get(self, client: ClientId, before: int) -> Memory:
        return {}

    def put(self, client: ClientId, round_: int, memory: Memory) -> None:
        pass


def a_round(method: str, clients: int, folder: Path) -> Callable[[], Any]:
    """Return what plays one round, its spool in a folder."""
    parts = Experiment.build(spec_of(method, images_of(clients)))
    parts = parts.with_clients(parts.clients_of_data())
    site = parts.service(parts.layout)
    driver = LocalDriver(parts.layout.clients, [site], _Forgetful())
    briefing = Briefing(weights.snapshot(site.network.state_dict()), site.network.first_layer, rounds=1)
    state, storage = parts.rule.init(briefing), Storage(spool=lambda: Spool(folder))
    return lambda: list(federate(parts.rule, driver, state, parts.schedule, 0, storage=storage))


def measure(method: str, clients: int) -> dict[str, float]:
    """Return the milliseconds of every part for one client: medians over rounds."""
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        play = a_round(method, clients, Path(folder))
        play()  # warm up
        for _ in range(_ROUNDS):
            clock = _Clock()
            with ExitStack() as patches:
                for part, places in PARTS.items():
                    for owner, name in places:
                        timed = clock.timed(part, getattr(owner, name))
                        patches.enter_context(mock.patch.object(owner, name, timed))
                clock.timed(_REST, play)()
            rounds.append(clock.seconds)
    return {part: 1000 / clients * median(row[part] for row in rounds) for part in (*PARTS, _REST)}


def main(clients: int, methods: tuple[str, ...]) -> None:
    """Print a table."""
    with compute_threads(1):
        found = {method: measure(method, clients) for method in methods}
    table = Table("part", *(column for method in methods for column in (f"{method}, ms", "share")))
    for part in (*PARTS, _REST):
        cells = ((row[part], row[part] / sum(row.values())) for row in found.values())
        table.add_row(part, *(text for ms, share in cells for text in (f"{ms:.2f}", f"{share:.0%}")))
    totals = (sum(row.values()) for row in found.values())
    table.add_row("a client", *(text for total in totals for text in (f"{total:.2f}", "100%")))
    Console(width=100).print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else _CLIENTS, tuple(sys.argv[2:]) or METHODS)
