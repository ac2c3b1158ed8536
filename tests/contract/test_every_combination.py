"""Every method with every local adaptation: where, in which order and in how many sittings is all one."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import pytest

from fedscal.client.training import Training
from fedscal.core import weights
from fedscal.core.spool import Spool
from fedscal.core.types import ClientId, Failure, Package, Reply
from fedscal.experiment.checkpoint import Checkpoints
from fedscal.experiment.records import MergedRound
from fedscal.methods import ADAPTATIONS, METHODS, build_objective, build_rule
from fedscal.runtime.local import LocalDriver
from fedscal.runtime.messages import (
    Request,
    Response,
    read_request,
    read_response,
    write_message,
)
from fedscal.runtime.protocols import Executor
from fedscal.runtime.service import ClientService
from fedscal.server.rounds import Round, Schedule, Storage, federate
from toys import Kept, briefing, client_data, learns, tiny_network

CLIENTS = ["a", "b", "c", "d"]
SCHEDULE = Schedule(rounds=3, participation=0.7, lr=0.05)


def spread(row: int, column: int, method: str, adaptation: str) -> bool:
    """Whether a pair stays in the default suite: a method with its own adaptation, and a third of the others.

    Along diagonals, so that every method and every adaptation is there several times.
    """
    return adaptation == METHODS[method].adaptation or (row + column) % 3 == 0


PAIRS = [
    pytest.param(
        method,
        adaptation,
        id=f"{method}-{adaptation}",
        marks=() if spread(row, column, method, adaptation) else pytest.mark.long,
    )
    for row, method in enumerate(METHODS)
    for column, adaptation in enumerate(ADAPTATIONS)
    if learns(method, adaptation)
]


def site(method: str, adaptation: str) -> ClientService:
    return ClientService(
        data={client: client_data(6, seed) for seed, client in enumerate(CLIENTS)},
        labels={},
        network=tiny_network(seed=7),
        objective=build_objective(method, adaptation, {}),
        training=Training(epochs=1, batch_size=4),
        seed=0,
        describe=METHODS[method].profile,
    )


Read = TypeVar("Read")


class Wired:
    """A worker without its process: every message goes through bytes and back."""

    def __init__(self, served: ClientService) -> None:
        self._served = served

    def handle(self, request: Request) -> Response | Failure:
        asked = _through_bytes(request, read_request)
        assert asked is not None
        answer = _through_bytes(self._served.handle(asked), read_response)
        assert answer is not None
        return answer


def _through_bytes(message: Request | Response | Failure, read: Callable[[BinaryIO], Read]) -> Read:
    stream = io.BytesIO()
    write_message(stream, message)
    stream.seek(0)
    return read(stream)


class Backwards(LocalDriver):
    """The last client answers first."""

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterator[Reply | Failure]:
        return iter(list(super().exchange(packages))[::-1])


@dataclass
class Play:
    """A federation that can be interrupted: its rule, its rounds' driver, its state on disk."""

    method: str
    adaptation: str

    def rounds(
        self,
        executors: Sequence[Executor],
        kind: Callable[..., LocalDriver] = LocalDriver,
        folder: Path | None = None,
    ) -> Iterator[Round]:
        """Yield all rounds; with a folder, every round starts from what the last one left on disk."""
        rule = build_rule(self.method, {})
        kept = Checkpoints(folder) if folder else None
        driver = kind(CLIENTS, executors, kept.memories if kept else Kept())
        source = weights.snapshot(tiny_network().state_dict())
        state = rule.init(briefing(source, driver if METHODS[self.method].profile else None, SCHEDULE.rounds))
        for done in federate(rule, driver, state, SCHEDULE, seed=0):
            yield done
            if folder and kept:
                kept.save(MergedRound(round=done.index), done.state)
                return

    def resumed(self, executors: Callable[[], Sequence[Executor]], folder: Path) -> Round:
        """Make one round at a time, each by a server that knows nothing but the files and keeps no reply."""
        (done,) = self.rounds(executors(), folder=folder)
        while done.index < SCHEDULE.rounds:
            kept = Checkpoints(folder)
            found = kept.latest()
            assert found is not None
            driver = LocalDriver(CLIENTS, executors(), kept.memories)
            rule = build_rule(self.method, {})
            on_disk = Storage(lambda: Spool(folder, room=0), kept.own.settled)
            done = next(
                federate(rule, driver, found.state, SCHEDULE, seed=0, after=found.round, storage=on_disk)
            )
            kept.save(MergedRound(round=done.index), done.state)
        return done


def digest(done: Round) -> str:
    return weights.digest_of({**done.state.groups(), **done.state.own})


@pytest.mark.parametrize(("method", "adaptation"), PAIRS)
def test_executors_order_and_interruptions_do_not_move_a_bit(
    method: str, adaptation: str, tmp_path: Path
) -> None:
    play = Play(method, adaptation)
    plain = list(play.rounds([site(method, adaptation)]))
    if not build_rule(method, {}).trains:
        assert plain == []
        return
    assert [done.failures for done in plain] == [[], [], []]
    *_, wired = play.rounds([Wired(site(method, adaptation)) for _ in range(2)])
    *_, backwards = play.rounds([site(method, adaptation)], Backwards)
    resumed = play.resumed(lambda: [site(method, adaptation)], tmp_path)
    assert {digest(done) for done in (wired, backwards, resumed)} == {digest(plain[-1])}
    assert [r.epochs for r in resumed.replies] == [r.epochs for r in plain[-1].replies]
