"""Median, trimmed mean and Krum on numbers that can be checked by hand, and the norm limit."""

from __future__ import annotations

import pytest
import torch

from fedscal.errors import UsageError
from fedscal.federation import Schedule, federate
from fedscal.server import robust
from fedscal.server.average import Average
from fedscal.server.rule import ServerState
from fedscal.spec import RunSpec
from fedscal.types import Failure, Reply


def models(*values: float, counters: tuple[int, ...] = ()) -> list[dict[str, torch.Tensor]]:
    counted = counters or (0,) * len(values)
    return [
        {"w": torch.tensor([v, -v], dtype=torch.float32), "n": torch.tensor(c)}
        for v, c in zip(values, counted, strict=True)
    ]


def test_the_median_of_an_odd_and_of_an_even_number():
    assert robust.median(models(1, 2, 900))["w"].tolist() == [2, -2]
    assert robust.median(models(1, 2, 4, 900))["w"].tolist() == [3, -3]


def test_a_counter_is_not_the_attacker_s_to_choose():
    assert robust.median(models(1, 2, 3, counters=(5, 6, 10**15)))["n"].item() == 6


def test_the_trimmed_mean_leaves_both_ends_out():
    assert robust.trimmed_mean(models(-900, 1, 2, 3, 900), 1)["w"].tolist() == [2, -2]


def test_krum_takes_the_one_in_the_crowd():
    # n = 5, f = 1: each is scored by its 2 nearest; 1.1 has 0.1 and 0.1 (times sqrt 2), 900 is far from all.
    assert robust.krum(models(1.0, 1.1, 1.2, 5.0, 900.0), 1)["w"].tolist() == pytest.approx([1.1, -1.1])


@pytest.mark.parametrize(
    ("aggregation", "attackers", "least"),
    [("uniform", 1, 1), ("median", 1, 3), ("trimmed-mean", 2, 5), ("krum", 1, 5), ("krum", 2, 7)],
)
def test_how_many_replies_are_needed(aggregation, attackers, least):
    assert Average(aggregation=aggregation, attackers=attackers).least_replies() == least


class Told:
    """A driver whose clients answer with given models."""

    def __init__(self, values: dict[str, float]) -> None:
        self.clients = sorted(values)
        self._values = values

    def exchange(self, packages):
        for client, package in packages.items():
            model = {"w": torch.tensor([self._values[client]])}
            yield Reply(client, package.round, model, 1)

    def profile(self):
        return {}

    def evaluate(self, given):
        return {}


def one_round(rule: Average, **values: float):
    state = ServerState({"server": {"w": torch.tensor([0.0])}})
    return next(iter(federate(rule, Told(values), state, Schedule(1, 1.0, 0.1), seed=0)))


def test_a_reply_that_went_too_far_is_dropped_and_named():
    done = one_round(Average(norm_limit=10), a=1.0, b=1.5, c=2.0, d=1000.0)
    # The median of 1, 1.5, 2, 1000 is 1.75; 1000 / 1.75 = 571.
    assert done.failures == [Failure("d", "went 571 times as far as the median client")]
    assert done.state.models["server"]["w"].item() == 1.5


def test_without_a_limit_nobody_is_dropped():
    assert one_round(Average(), a=1.0, b=1.5, c=2.0, d=1000.0).failures == []


def test_too_few_good_replies_make_a_void_round():
    done = one_round(Average(aggregation="krum", norm_limit=10), a=1.0, b=1.5, c=2.0, d=1000.0, e=1.0)
    assert done.replies == []
    assert done.state.models["server"]["w"].item() == 0
    assert "needs 5" in done.failures[0].reason
    assert len(done.failures) == 5


def test_an_aggregation_that_can_do_nothing_is_refused(toy_benchmark, tmp_path):
    from fedscal.run import adapt

    spec = RunSpec.make(benchmark="toy", method="fedloa", aggregation="krum", participation=1.0)
    with pytest.raises(UsageError, match="aggregation=krum needs at least 5 clients in a round, and 4"):
        adapt(spec, tmp_path / "run")


def test_new_keys_at_their_defaults_leave_the_hash_of_a_run(toy_benchmark):
    plain = RunSpec.make(benchmark="toy", method="fedloa")
    assert RunSpec.make(benchmark="toy", method="fedloa", attackers=1).digest() == plain.digest()
    assert RunSpec.make(benchmark="toy", method="fedloa", attackers=2).digest() != plain.digest()
