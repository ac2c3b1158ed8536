"""The round loop with scripted clients: sampling, learning rate, and rounds that lose clients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
import torch

from fedscal.core import weights
from fedscal.core.errors import TooFewClients
from fedscal.core.types import ClientId, Failure, Package, Reply
from fedscal.server.rounds import Schedule, federate
from fedscal.server.rule import Briefing, Frozen, Isolated
from fedscal.server.rules.average import Average
from toys import FakeDriver, echo, model, reply, rounds

CLIENTS = ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("rate", "clients", "expected"),
    [
        (0.1, 30, 3),
        (0.14, 50, 7),
        (0.07, 100, 7),
        (0.3, 10, 3),
        (0.3, 15, 5),
        (0.5, 6, 3),
        (0.34, 3, 2),
        (0.01, 5, 1),
        (1.0, 7, 7),
        (0.7, 10, 7),
    ],
)
def test_the_number_of_clients_is_rounded_up(rate: float, clients: int, expected: int) -> None:
    # 0.14 * 50 and 0.07 * 100 are 7.000000000000001 in floating point, which must not become 8.
    names = [f"{number:02}" for number in range(clients)]
    chosen = Schedule(1, rate, 0.1).sample(names, seed=0, round_=1)
    assert len(chosen) == len(set(chosen)) == expected
    assert chosen == sorted(chosen)


def test_sampling_is_a_function_of_seed_and_round() -> None:
    schedule, names = Schedule(9, 0.3, 0.1), [str(number) for number in range(10)]
    draws = {
        (seed, index): tuple(schedule.sample(names, seed, index)) for seed in (0, 1) for index in range(1, 9)
    }
    assert draws == {key: tuple(schedule.sample(names, *key)) for key in reversed(draws)}
    assert len(set(draws.values())) > 8
    assert {name for seed, index in draws for name in draws[seed, index]} == set(names)


def test_the_learning_rate_is_a_cosine() -> None:
    # Rounds 1..4 of 4: (1 + cos(k pi / 4)) / 2 for k = 0, 1, 2, 3 of 0.2.
    found = [Schedule(4, 1.0, 0.2).lr_at(index) for index in (1, 2, 3, 4)]
    root = math.sqrt(0.5)
    assert found == pytest.approx([0.2, 0.1 * (1 + root), 0.1, 0.1 * (1 - root)])


def test_a_round_sends_the_model_and_merges_the_replies() -> None:
    driver = FakeDriver(CLIENTS, lambda c, p: [reply(c, model(float(CLIENTS.index(c)), counter=5), p.round)])
    (done,) = rounds(Average(), driver, model(7.0))
    assert {c: p.models["server"]["w"][0].item() for c, p in driver.sent[0].items()} == dict.fromkeys(
        CLIENTS, 7.0
    )
    assert all(p.round == 1 and p.lr == 0.1 for p in driver.sent[0].values())
    assert done.state.models["server"]["w"].tolist() == [1.5, -1.5]  # (0 + 1 + 2 + 3) / 4
    assert (done.index, done.participants, list(done.failures)) == (1, CLIENTS, [])
    assert done.bytes_down["a"] == 2 * 4 + 4 + 8


def test_rounds_follow_each_other_from_the_merged_state() -> None:
    values = [
        done.state.models["server"]["w"][0].item()
        for done in rounds(Average(), FakeDriver(CLIENTS), model(0.0), 3)
    ]
    assert values == [1.0, 2.0, 3.0]


def test_isolated_clients_move_only_when_they_are_sampled() -> None:
    driver = FakeDriver(CLIENTS)
    done = list(rounds(Isolated(), driver, model(0.0), count=6, rate=0.5))
    turns = {client: sum(client in sent for sent in driver.sent) for client in CLIENTS}
    assert sum(turns.values()) == 12
    assert len(set(turns.values())) > 1, "this seed must not give all clients the same number of turns"
    for client in CLIENTS:
        assert Isolated().deployed(done[-1].state, client)["w"][0].item() == turns[client]


def test_a_frozen_rule_runs_no_round() -> None:
    driver = FakeDriver(CLIENTS)
    assert list(rounds(Frozen(), driver, model(0.0), 3)) == []
    assert driver.sent == []


def test_going_on_after_a_round_equals_never_having_stopped() -> None:
    schedule = Schedule(5, 0.5, 0.1)
    whole = list(
        federate(Average(), FakeDriver(CLIENTS), Average().init(Briefing(model(0.3), "w")), schedule, seed=3)
    )
    rest = list(federate(Average(), FakeDriver(CLIENTS), whole[1].state, schedule, seed=3, after=2))
    assert [done.index for done in rest] == [3, 4, 5]
    for resumed, straight in zip(rest, whole[2:], strict=True):
        assert (resumed.participants, resumed.lr) == (straight.participants, straight.lr)
        assert weights.digest(resumed.state.models["server"]) == weights.digest(
            straight.state.models["server"]
        )


class Backwards(FakeDriver):
    """The last client answers first."""

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterator[Reply | Failure]:
        return iter(list(super().exchange(packages))[::-1])


def test_the_order_of_the_replies_does_not_move_a_bit() -> None:
    def drift(client: ClientId, package: Package) -> list[Reply | Failure]:
        noise = torch.Generator().manual_seed(CLIENTS.index(client))
        moved = {
            n: t + torch.rand(t.shape, generator=noise) * 10.0 ** CLIENTS.index(client)
            for n, t in FLOATS.items()
        }
        return [reply(client, moved, package.round)]

    digests = {
        weights.digest(done.state.models["server"])
        for kind in (FakeDriver, Backwards)
        for done in rounds(Average(), kind(CLIENTS, drift), FLOATS)
    }
    assert len(digests) == 1


FLOATS = {"w": torch.linspace(-1, 1, 20)}


def misbehave(client: ClientId, package: Package) -> list[Reply | Failure]:
    """Let only client d answer as it should."""
    (good,) = echo(client, package)
    assert isinstance(good, Reply)
    w = good.weights["w"]
    answers: dict[ClientId, list[Reply | Failure]] = {
        "crash": [Failure("crash", "out of memory")],
        "double": [good, replace(good, weights=model(1e6))],
        "keys": [replace(good, weights={"w": w})],
        "nan": [replace(good, weights={**good.weights, "w": w * float("nan")})],
        "shape": [replace(good, weights={**good.weights, "w": w[:1]})],
        "silent": [],
        "stranger": [replace(good, client="somebody")],
    }
    return answers.get(client, [good])


def test_bad_clients_are_dropped_and_named_and_the_round_goes_on() -> None:
    names = ["crash", "double", "good", "keys", "nan", "shape", "silent", "stranger"]
    (done,) = rounds(Average(), FakeDriver(names, misbehave), model(0.0))
    assert [r.client for r in done.replies] == ["double", "good"]
    assert done.state.models["server"]["w"].tolist() == [1.0, 1.0], "only sound first answers are averaged"
    reasons = {failure.client: failure.reason for failure in done.failures}
    assert reasons.keys() == {"crash", "double", "keys", "nan", "shape", "silent", "somebody", "stranger"}
    assert reasons["crash"] == "out of memory"
    assert reasons["silent"] == reasons["stranger"] == "did not answer"


def fail(client: ClientId, package: Package) -> list[Reply | Failure]:
    return [Failure(client, "unplugged")]


def test_a_void_round_changes_nothing_and_three_running_end_the_run() -> None:
    run = rounds(Average(), FakeDriver(CLIENTS, fail), model(5.0), count=9)
    seen = [next(run).state.models["server"]["w"][0].item() for _ in range(2)]
    with pytest.raises(TooFewClients, match=r"no usable reply in 3 rounds running\. a: unplugged; b: unpl"):
        next(run)
    assert seen == [5.0, 5.0]


def test_void_rounds_that_do_not_follow_each_other_are_survived() -> None:
    def every_third(client: ClientId, package: Package) -> list[Reply | Failure]:
        return (echo if package.round % 3 == 0 else fail)(client, package)

    done = list(rounds(Average(), FakeDriver(CLIENTS, every_third), model(0.0), count=8))
    assert [bool(one.replies) for one in done] == [False, False, True] * 2 + [False, False]
    assert done[-1].state.models["server"]["w"][0].item() == 2.0


def test_at_least_one_client_takes_part_however_small_the_rate() -> None:
    assert len(Schedule(1, 1e-10, 0.1).sample(CLIENTS, 0, 1)) == 1
