"""Median, trimmed mean and Krum on numbers that can be checked by hand, and the norm limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from fedscal.core.errors import UsageError
from fedscal.core.options import construct
from fedscal.core.types import ClientId, Failure, Judged, Metrics, Package, Reply, Weights
from fedscal.data.benchmark import Benchmark
from fedscal.experiment.spec import RunSpec
from fedscal.server import aggregation as robust
from fedscal.server import statistics
from fedscal.server.aggregation import Aggregation
from fedscal.server.rounds import Round, Schedule, federate
from fedscal.server.rule import ServerState
from fedscal.server.rules.average import Average
from fedscal.server.screen import NormLimit


def models(*values: float, counters: tuple[int, ...] = ()) -> list[dict[str, torch.Tensor]]:
    counted = counters or (0,) * len(values)
    return [
        {"w": torch.tensor([v, -v], dtype=torch.float32), "n": torch.tensor(c)}
        for v, c in zip(values, counted, strict=True)
    ]


def test_the_median_of_an_odd_and_of_an_even_number() -> None:
    assert robust.median(models(1, 2, 900))["w"].tolist() == [2, -2]
    assert robust.median(models(1, 2, 4, 900))["w"].tolist() == [3, -3]


def test_every_coordinate_of_a_convolution_stays_in_its_place() -> None:
    kernels = torch.arange(24.0).reshape(2, 3, 2, 2)
    found = robust.median([{"w": kernels + step} for step in (-1, 0, 900)])["w"]
    assert found.equal(kernels)


def test_a_counter_is_not_the_attacker_s_to_choose() -> None:
    assert robust.median(models(1, 2, 3, counters=(5, 6, 10**15)))["n"].item() == 6


def test_the_trimmed_mean_leaves_both_ends_out() -> None:
    assert robust.trimmed_mean(models(-900, 1, 2, 3, 900), 1)["w"].tolist() == [2, -2]


def test_krum_takes_the_one_in_the_crowd() -> None:
    # n = 5, f = 1: each is scored by its 2 nearest; 1.1 has 0.1 and 0.1 (times sqrt 2), 900 is far from all.
    assert robust.krum(models(1.0, 1.1, 1.2, 5.0, 900.0), models(0.0)[0], 1)["w"].tolist() == pytest.approx(
        [1.1, -1.1]
    )


@pytest.mark.parametrize(
    ("aggregation", "attackers", "least"),
    [("uniform", 1, 1), ("median", 1, 3), ("trimmed-mean", 2, 5), ("krum", 1, 5), ("krum", 2, 7)],
)
def test_how_many_replies_are_needed(
    aggregation: Literal["uniform", "median", "trimmed-mean", "krum"], attackers: int, least: int
) -> None:
    assert Average(Aggregation(aggregation, attackers)).least_replies() == least


class Told:
    """A driver whose clients answer with given models."""

    def __init__(self, models: dict[str, dict[str, torch.Tensor]]) -> None:
        self.clients: Sequence[ClientId] = sorted(models)
        self._models = models

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterator[Reply | Failure]:
        for client, package in packages.items():
            yield Reply(client, package.round, self._models[client], 1)

    def compare(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, float]:
        return {}

    def evaluate_own(
        self, replies: Sequence[Reply], received: Mapping[ClientId, Weights]
    ) -> dict[ClientId, Metrics]:
        return {reply.client: {} for reply in replies}

    def statistics(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Weights]:
        return {}

    def profile(self) -> dict[ClientId, Weights]:
        return {}

    def evaluate(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Metrics]:
        return {}

    def judge(self, models: Mapping[ClientId, Weights], then: Judged) -> None:
        then({}, 0.0)


def one_round(rule: Average, **values: float) -> Round:
    state = ServerState({"server": {"w": torch.tensor([0.0])}})
    told = Told({client: {"w": torch.tensor([value])} for client, value in values.items()})
    return next(iter(federate(rule, told, state, Schedule(1, 1.0, 0.1), seed=0)))


def test_a_reply_that_went_too_far_is_dropped_and_named() -> None:
    done = one_round(Average(limit=NormLimit(10)), a=1.0, b=1.5, c=2.0, d=1000.0)
    # The median of 1, 1.5, 2, 1000 is 1.75; 1000 / 1.75 = 571.
    assert done.failures == [Failure("d", "went 571 times as far as the median client in its parameters")]
    assert done.state.models["server"]["w"].item() == 1.5


def with_statistics(mean: float, variance: float, weight: float = 1.0) -> dict[str, torch.Tensor]:
    return {
        "w": torch.tensor([weight]),
        "n.running_mean": torch.tensor([mean]),
        "n.running_var": torch.tensor([variance]),
    }


def test_statistics_are_measured_as_a_gaussian_s() -> None:
    # A mean in standard deviations of the third model, a variance by half its squared logarithm.
    server = with_statistics(0.0, 4.0 - 1e-5)
    far = with_statistics(6.0, math.e**2 * 4.0 - 1e-5)
    assert statistics.distance(far, server, server) == pytest.approx(math.hypot(6 / 2, 2 / math.sqrt(2)))


HONEST = [with_statistics(m, v, w) for m, v, w in [(0.1, 1.1, 1.0), (0.2, 0.9, 1.2), (0.15, 1.0, 0.8)] * 2]
FAR = {
    "means": with_statistics(50.0, 1.0),
    "variances": with_statistics(0.1, 1e6),
    "no variance": with_statistics(0.1, 0.0),
}


@pytest.mark.parametrize("kind", FAR)
def test_statistics_count_in_the_limit_and_in_krum(kind: str) -> None:
    server = with_statistics(0.0, 1.0, 0.0)
    found = statistics.relative_steps([FAR[kind], *HONEST[:5]], server)
    assert found["parameters"][0] == 1.0
    assert found["statistics"][0] > 10
    assert max(found["statistics"][1:]) < 3
    # The parameters of the odd one are the most usual of all: without its statistics Krum would take it.
    assert robust.krum([FAR[kind], *HONEST[:5]], server, 1)["n.running_mean"].item() < 1


@pytest.mark.parametrize(
    "keys",
    [{}, {"norm_limit": 3.0}, {"aggregation": "krum"}, {"aggregation": "krum", "norm_limit": 3.0}],
    ids=str,
)
def test_a_negative_variance_is_dropped_by_name_whatever_the_rule(keys: dict[str, Any]) -> None:
    bad = {"odd": with_statistics(0.1, -1e6), **{f"c{n}": model for n, model in enumerate(HONEST[:5])}}
    state = ServerState({"server": with_statistics(0.0, 1.0, 0.0)})
    done = next(iter(federate(construct(Average, keys), Told(bad), state, Schedule(1, 1.0, 0.1), seed=0)))
    assert done.failures == [Failure("odd", "the variance 'n.running_var' is negative")]
    assert done.state.models["server"]["n.running_var"].item() == pytest.approx(1.0, abs=0.2)


def test_a_limit_needs_somebody_who_moved() -> None:
    still = with_statistics(0.0, 1.0)
    assert statistics.relative_steps([still, still, with_statistics(5.0, 1.0)], still) == {}


def test_without_a_limit_nobody_is_dropped() -> None:
    assert one_round(Average(), a=1.0, b=1.5, c=2.0, d=1000.0).failures == []


def test_too_few_good_replies_make_a_void_round() -> None:
    done = one_round(Average(Aggregation("krum"), NormLimit(10)), a=1.0, b=1.5, c=2.0, d=1000.0, e=1.0)
    assert done.replies == []
    assert done.state.models["server"]["w"].item() == 0
    assert "needs 5" in done.failures[0].reason
    assert len(done.failures) == 5


def test_an_aggregation_that_can_do_nothing_is_refused(toy_benchmark: Benchmark, tmp_path: Path) -> None:
    from fedscal.experiment.run import adapt

    spec = RunSpec.make(benchmark="toy", method="fedloa", aggregation="krum", participation=1.0)
    with pytest.raises(UsageError, match="aggregation=krum needs at least 5 clients in a round, and 4"):
        adapt(spec, tmp_path / "run")


def test_new_keys_at_their_defaults_leave_the_hash_of_a_run(toy_benchmark: Benchmark) -> None:
    plain = RunSpec.make(benchmark="toy", method="fedloa")
    assert RunSpec.make(benchmark="toy", method="fedloa", attackers=1).digest() == plain.digest()
    assert RunSpec.make(benchmark="toy", method="fedloa", attackers=2).digest() != plain.digest()
