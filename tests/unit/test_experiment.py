"""From a spec to parts: what is refused before anything is trained, and the authors' learning rate."""

from __future__ import annotations

import math

import pytest
import torch

from fedscal.core.errors import TooFewClients, UsageError
from fedscal.data.benchmark import Benchmark
from fedscal.experiment.experiment import Experiment, Layout
from fedscal.experiment.spec import RunSpec


def feasible(**keys: object) -> int:
    """Return the number of clients of a run that is not refused."""
    experiment = Experiment.build(RunSpec.make(benchmark="toy", **keys))
    return len(experiment.with_clients(experiment.clients_of_data()).layout.clients)


@pytest.mark.parametrize("method", ["fedwca", "ladd"])
def test_clusters_need_three_clients(toy_benchmark: Benchmark, method: str) -> None:
    with pytest.raises(TooFewClients, match=f"{method} needs at least 3 clients, and there are 2"):
        feasible(method=method, clients_per_domain=1)
    assert feasible(method=method, clients_per_domain=2) == 4


def test_a_contrast_needs_a_client_that_takes_part_twice(toy_benchmark: Benchmark) -> None:
    with pytest.raises(UsageError, match="no client takes part twice"):
        feasible(method="fedmoon", rounds=1)
    assert feasible(method="fedmoon", rounds=2, participation=1) == 4
    assert feasible(method="fedmoon", rounds=1, mu=0) == 4


def test_other_methods_run_with_one_client_a_domain_and_one_round(toy_benchmark: Benchmark) -> None:
    for method in ("source-only", "loa", "fedloa", "fedprox", "dualadapt", "fedscal"):
        assert feasible(method=method, clients_per_domain=1, rounds=1) == 2


def test_the_authors_rate_is_a_cosine_over_all_mini_batches(toy_benchmark: Benchmark) -> None:
    spec = RunSpec.make(
        benchmark="toy", lr_schedule="oscillating", lr=0.1, rounds=3, local_epochs=50, participation=1
    )
    # Clients of 65, 64 and 129 images at 64 a batch make 1, 1 and 2 batches (a lone last image joins the
    # batch before it): 50 epochs are 200 steps a round.
    rows = {c: ("dim", torch.arange(n)) for c, n in {"a": 65, "b": 64, "c": 129}.items()}
    schedule = Experiment.build(spec).with_clients(Layout(rows, [])).schedule
    expected = [0.1 * (1 + math.cos(math.pi * steps / 500)) / 2 for steps in (0, 200, 400)]
    assert [schedule.lr_at(round_) for round_ in (1, 2, 3)] == pytest.approx(expected)


def test_the_rate_is_the_papers_cosine_unless_asked_otherwise(toy_benchmark: Benchmark) -> None:
    spec = RunSpec.make(benchmark="toy", lr=0.2, rounds=2)
    schedule = Experiment.build(spec).schedule
    assert [schedule.lr_at(round_) for round_ in (1, 2)] == pytest.approx([0.2, 0.1])


def test_switches_reach_the_training_and_the_site(toy_benchmark: Benchmark) -> None:
    spec = RunSpec.make(benchmark="toy", label_view="weak", view_passes="joint", batch_size=32)
    training = Experiment.build(spec).training
    assert (training.label_view, training.joint, training.batch_size) == ("weak", True, 32)
    for method, asked in {"ladd": True, "fedloa": False}.items():
        experiment = Experiment.build(RunSpec.make(benchmark="toy", method=method))
        assert (experiment.service(experiment.clients_of_data()).describe is not None) == asked
