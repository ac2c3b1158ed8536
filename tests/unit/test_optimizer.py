"""The server's optimisers, against steps worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
import torch

from fedscal.core import weights
from fedscal.core.errors import UsageError
from fedscal.server.aggregation import Aggregation
from fedscal.server.optimizer import ServerOptimizer
from fedscal.server.rule import Briefing, ServerState
from fedscal.server.rules.average import Average
from toys import model, reply

SOURCE = model(0.0)
Kind = Literal["momentum", "adam", "yogi"]
HAND = {"server_beta1": 0.5, "server_beta2": 0.5, "server_epsilon": 1.0}


def states(rule: Average, means: Sequence[float]) -> list[ServerState]:
    """Return the states after rounds whose aggregates are these."""
    found = [rule.init(Briefing(SOURCE, "w"))]
    for mean in means:
        found.append(rule.merge(found[-1], [reply("a", model(mean))]))
    return found[1:]


def values(rule: Average, *means: float) -> list[float]:
    return [state.models["server"]["w"][0].item() for state in states(rule, means)]


def test_without_an_optimiser_the_aggregate_is_taken_and_nothing_is_kept() -> None:
    found = states(Average(), [10.0, 14.0])
    assert found[-1].models["server"]["w"].tolist() == [14.0, -14.0]
    assert found[-1].notes == {}


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        # From 0 to the mean 10: a step of 10. Then from 10 to the mean 14: a step of 4 + 0.5 * 10.
        (ServerOptimizer(server_momentum=0.5), [10.0, 19.0]),
        (ServerOptimizer("momentum", server_momentum=0.5), [10.0, 19.0]),
        (ServerOptimizer("momentum", server_beta1=0.5), [10.0, 19.0]),
        # At half the rate: 0 + 5. Then the step to go is 9, and 5 + (9 + 0.5 * 10) / 2 = 12.
        (ServerOptimizer("momentum", server_momentum=0.5, server_lr=0.5), [5.0, 12.0]),
    ],
    ids=["momentum alone", "named", "by beta1", "half the rate"],
)
def test_momentum(optimizer: ServerOptimizer, expected: list[float]) -> None:
    assert values(Average(optimizer=optimizer), 10.0, 14.0) == expected


def test_adam() -> None:
    """Betas 1/2, epsilon 1, rate 12; the second moment starts at epsilon^2 = 1.

    From 0 to 7: m = 7/2, v = (1 + 49)/2 = 25, the step 12 * 3.5 / (5 + 1) = 7.
    From 7 to 12: m = (3.5 + 5)/2 = 4.25, v = (25 + 25)/2 = 25, the step 12 * 4.25 / 6 = 8.5.
    """
    rule = Average(optimizer=ServerOptimizer("adam", server_lr=12.0, **HAND))
    assert values(rule, 7.0, 12.0) == [7.0, 15.5]


def test_yogi() -> None:
    """Betas 1/2, epsilon 1, rate 8; the second moment starts at 1.

    From 0 to 4: m = 2, v = 1 + 16/2 = 9, for 16 > 1; the step 8 * 2 / (3 + 1) = 4.
    From 4 to 6: m = (2 + 2)/2 = 2, v = 9 - 4/2 = 7, for 4 < 9 (Adam's were 6.5); the step 16 / (sqrt 7 + 1).
    """
    rule = Average(optimizer=ServerOptimizer("yogi", server_lr=8.0, **HAND))
    assert values(rule, 4.0, 6.0) == pytest.approx([4.0, 4 + 16 / (7**0.5 + 1)])


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_statistics_and_counters_take_the_aggregate(kind: Kind) -> None:
    rule = Average(optimizer=ServerOptimizer(kind))
    start = rule.init(Briefing(SOURCE, "w"))
    state = rule.merge(start, [reply("a", model(3.0, counter=7))])
    assert state.models["server"]["norm.running_mean"].tolist() == [30.0]
    assert state.models["server"]["norm.num_batches_tracked"].item() == 7
    assert not any("norm" in name for name in state.notes)


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi"])
def test_moments_come_back_from_a_file_to_the_same_bits(kind: Kind) -> None:
    rule = Average(optimizer=ServerOptimizer(kind))
    first = states(rule, [10.0])[0]
    data = weights.to_bytes(weights.flatten(first.groups()))
    back = ServerState.of(weights.unflatten(weights.from_bytes(data, "state")))
    on, again = (rule.merge(state, [reply("a", model(14.0))]) for state in (first, back))
    assert weights.digest(weights.flatten(on.groups())) == weights.digest(weights.flatten(again.groups()))


def test_a_median_step_is_taken_by_the_optimiser() -> None:
    # The median of 1, 2 and 900 is 2; from 0 at half the rate it is 1, and then 1 + (1 + 0.5 * 2) / 2 = 2.
    rule = Average(Aggregation("median"), optimizer=ServerOptimizer("momentum", 0.5, server_lr=0.5))
    replies = [reply(client, model(value)) for client, value in zip("abc", (1.0, 2.0, 900.0), strict=True)]
    first = rule.merge(rule.init(Briefing(SOURCE, "w")), replies)
    assert first.models["server"]["w"].tolist() == [1.0, -1.0]
    assert rule.merge(first, replies).models["server"]["w"].tolist() == [2.0, -2.0]


@pytest.mark.parametrize("kind", ["adam", "yogi"])
def test_two_first_moments_are_refused(kind: Kind) -> None:
    with pytest.raises(UsageError, match="server_beta1 in its place"):
        ServerOptimizer(kind, server_momentum=0.9)


def test_a_first_step_of_adam_at_its_defaults_is_no_larger_than_the_way_to_the_aggregate() -> None:
    # 0.01 * 0.1 d / (sqrt(0.99e-6 + 0.01 d^2) + 1e-3): about d/2 for a small step d.
    rule = Average(optimizer=ServerOptimizer("adam"))
    assert values(rule, 1e-5)[0] == pytest.approx(0.5e-5, rel=0.01)
    assert torch.isfinite(torch.tensor(values(rule, 1e30))).all()
