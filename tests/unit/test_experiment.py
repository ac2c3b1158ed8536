"""From a spec to parts: what is refused before anything is trained, and the authors' learning rate."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

import fedscal
from fedscal.core.errors import TooFewClients, UsageError
from fedscal.data.benchmark import Benchmark
from fedscal.data.folders import benchmark as folders
from fedscal.experiment import experiment as parts
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


def counted(monkeypatch: pytest.MonkeyPatch, module: object, name: str, calls: list[str]) -> None:
    """Count the calls of a function where it is used."""
    real = getattr(module, name)

    def counting(*args: object, **named: object) -> object:
        calls.append(name)
        return real(*args, **named)

    monkeypatch.setattr(module, name, counting)


def test_a_run_reads_its_folder_once_and_builds_its_network_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (domain, label) in enumerate(itertools.product("ab", "xy")):
        for copy in range(3):
            path = tmp_path / "images" / domain / label / f"{copy}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 40), (60 * number, 20 * copy, 99)).save(path)
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    calls: list[str] = []
    counted(monkeypatch, folders, "scan", calls)
    counted(monkeypatch, folders, "decoded", calls)
    counted(monkeypatch, parts, "build_network", calls)
    counted(monkeypatch, parts, "load_data", calls)
    keys = {"source": "a", "image_size": 32, "rounds": 2, "local_epochs": 1, "pretrain_epochs": 1}
    spec = RunSpec.make(
        benchmark=str(tmp_path / "images"), workers=1, clients_per_domain=1, participation=1, **keys
    )
    fedscal.adapt(spec, tmp_path / "run")
    assert Counter(calls) == {"scan": 1, "load_data": 1, "build_network": 1, "decoded": len("ab")}
