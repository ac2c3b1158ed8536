"""The only round loop: sample, send, receive, screen, merge."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedscal.core import weights
from fedscal.core.errors import TooFewClients
from fedscal.core.lazy import torch
from fedscal.core.rng import stream
from fedscal.core.spool import Spool
from fedscal.core.types import ClientId, Failure, Judged, Metrics, Package, Reply, Weights
from fedscal.server.rule import ServerRule, ServerState
from fedscal.server.screen import screen

_MAX_VOID_ROUNDS = 3
Asked = Callable[[int, Sequence[ClientId]], None]
"""Is told, as a round begins, its number and who is asked to train."""


@dataclass(frozen=True)
class Storage:
    """Where models are that are too many for the memory: the replies of a round, and single clients'.

    Attributes:
        spool: begins to keep the replies of a round.
        settled: puts the models of single clients that a round has changed where they stay.
    """

    spool: Callable[[], Spool] = Spool
    settled: Callable[[int, ServerState], ServerState] = lambda round_, state: state


class Driver(Protocol):
    """Executes clients: in this process, in worker processes, or on other machines."""

    clients: Sequence[ClientId]

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterable[Reply | Failure]:
        """Train clients; yield their answers in any order."""
        ...

    def profile(self) -> Mapping[ClientId, Weights]:
        """Return the profile of every client, as the method defines it; once, before the first round."""
        ...

    def compare(self, models: Mapping[ClientId, Weights]) -> Mapping[ClientId, float]:
        """Return how unlike each client's images are to those that its model knows; once, before round 1."""
        ...

    def statistics(self, models: Mapping[ClientId, Weights]) -> Mapping[ClientId, Weights]:
        """Return the clients' own statistics for their models; of clients elsewhere none: they stay there."""
        ...

    def evaluate(self, models: Mapping[ClientId, Weights]) -> Mapping[ClientId, Metrics]:
        """Evaluate models now, each at its client on the client's own data; only scalars are returned."""
        ...

    def judge(self, models: Mapping[ClientId, Weights], then: Judged) -> None:
        """Evaluate models at the latest with the next ``exchange``, and before its end call ``then``.

        Clients on this machine do it at once. To others a message takes seconds, and it rides on the next.
        """
        ...

    def evaluate_own(
        self, replies: Sequence[Reply], received: Mapping[ClientId, Weights]
    ) -> Mapping[ClientId, Metrics]:
        """Evaluate the model of each reply at the client that sent it.

        ``received`` are the models that these were trained from, where their errors are to be compared.
        """
        ...


@dataclass(frozen=True)
class Schedule:
    """How many rounds, who takes part, and at which learning rate.

    ``rates`` holds the learning rate of every round, if it is not the cosine. ``least`` clients take part, if
    there are so many, whatever the share.
    """

    rounds: int
    participation: float
    lr: float
    rates: Sequence[float] = ()
    least: int = 1

    def sample(self, clients: Sequence[ClientId], seed: int, round_: int) -> list[ClientId]:
        """Draw ceil(rate * K) clients, or the least, by (seed, round): a resumed run draws the same."""
        share = math.ceil(self.participation * len(clients) - 1e-9)  # 0.14 * 50 is a little above 7
        order = torch.randperm(len(clients), generator=stream(seed, "sampling", round_))
        return sorted(clients[int(i)] for i in order[: max(self.least, share)])

    def lr_at(self, round_: int) -> float:
        """Return the learning rate of round 1..T: a cosine from ``lr`` towards 0 unless given."""
        if self.rates:
            return self.rates[round_ - 1]
        return self.lr * 0.5 * (1 + math.cos(math.pi * (round_ - 1) / self.rounds))


@dataclass(frozen=True)
class Round:
    """What happened in one round, and the server's state after it."""

    index: int
    lr: float
    state: ServerState
    participants: Sequence[ClientId]
    replies: Sequence[Reply]
    failures: Sequence[Failure]
    bytes_down: Mapping[ClientId, int]
    seconds: float


def federate(
    rule: ServerRule,
    driver: Driver,
    state: ServerState,
    schedule: Schedule,
    seed: int,
    after: int = 0,
    void: int = 0,
    asked: Asked = lambda round_, clients: None,
    storage: Storage = Storage(),  # noqa: B008 - a frozen value
) -> Iterator[Round]:
    """Yield the rounds after round ``after``, starting from the state that it left.

    ``void`` is the number of consecutive rounds without a usable reply by then; ``asked`` is told who takes
    part.
    """
    if void >= _MAX_VOID_ROUNDS:
        raise TooFewClients(f"no usable reply in the last {void} rounds of this run.")
    for index in range(after + 1, schedule.rounds + 1) if rule.trains else ():
        done = [_round(rule, driver, state, schedule, seed, index, asked, storage)]
        state = done[0].state
        void = 0 if done[0].replies else void + 1
        if void == _MAX_VOID_ROUNDS:
            reasons = "; ".join(f"{f.client}: {f.reason}" for f in done[0].failures[:3])
            raise TooFewClients(f"no usable reply in {void} rounds running. {reasons}")
        yield done.pop()  # whoever takes it decides how long its replies are kept


def _round(
    rule: ServerRule,
    driver: Driver,
    state: ServerState,
    schedule: Schedule,
    seed: int,
    index: int,
    asked: Asked,
    storage: Storage,
) -> Round:
    started = time.perf_counter()
    everyone = rule.calls_everyone(state)
    chosen = sorted(driver.clients) if everyone else schedule.sample(driver.clients, seed, index)
    asked(index, chosen)
    lr = schedule.lr_at(index)
    packages = {client: Package(index, lr, rule.send(state, client)) for client in chosen}
    replies, failures = screen(driver.exchange(packages), packages, rule.reports, storage.spool().keep)
    replies, failures = _trusted(rule, state, replies, failures)
    merged = storage.settled(index, rule.merge(state, replies)) if replies else state
    return Round(
        index=index,
        lr=lr,
        state=merged,
        participants=chosen,
        replies=replies,
        failures=failures,
        bytes_down={c: weights.byte_count_of(p.models) for c, p in packages.items()},
        seconds=time.perf_counter() - started,
    )


def _trusted(
    rule: ServerRule, state: ServerState, replies: list[Reply], failures: list[Failure]
) -> tuple[list[Reply], list[Failure]]:
    """Drop what the rule suspects; fewer replies than the rule needs count as none."""
    dropped = dict(rule.suspects(state, replies))
    kept = [reply for reply in replies if reply.client not in dropped]
    if len(kept) < rule.least_replies():
        need = f"not used: {len(kept)} good replies, and the server's rule needs {rule.least_replies()}"
        dropped |= {reply.client: need for reply in kept}
        kept = []
    failures = [*failures, *(Failure(client, reason) for client, reason in dropped.items())]
    return kept, sorted(failures, key=lambda failure: failure.client)
