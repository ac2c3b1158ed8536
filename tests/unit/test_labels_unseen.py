"""Training cannot see labels: with other labels, every bit of the adapted model is the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedscal.core import weights
from fedscal.data.benchmark import Benchmark
from fedscal.experiment import build
from fedscal.experiment.build import build_layout, build_schedule, build_site
from fedscal.experiment.spec import RunSpec
from fedscal.methods import METHODS, build_rule
from fedscal.runtime.local import LocalDriver
from fedscal.server.rounds import federate
from toys import Kept, briefing


def adapted(spec: RunSpec) -> tuple[str, list[float]]:
    """Run a federation through the real site; return the models' digest and the clients' accuracies."""
    site = build_site(spec)
    source = weights.snapshot(site.network.state_dict())
    rule = build_rule(spec.method, spec.hyper)
    driver = LocalDriver(sorted(site.data), [site], Kept())
    state = rule.init(briefing(source, driver if site.describe else None, spec.rounds))
    for done in federate(rule, driver, state, build_schedule(spec, build_layout(spec)), spec.seed):
        state = done.state
        assert not done.failures
    judged = driver.evaluate({client: rule.deployed(state, client) for client in site.data})
    return weights.digest(weights.flatten(state.groups())), [row["accuracy"] for row in judged.values()]


@pytest.mark.parametrize("method", METHODS)
def test_shuffled_labels_move_the_accuracy_and_not_one_bit_of_the_weights(
    method: str, toy_benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec.make(benchmark="toy", method=method, participation=1, batch_size=8)
    digest, accuracies = adapted(spec)
    true_labels = build.labels

    def shuffled(data: Benchmark, domain: str) -> Tensor:
        found = true_labels(data, domain)
        return (found + torch.randint(1, 3, found.shape, generator=torch.Generator().manual_seed(7))) % 3

    monkeypatch.setattr(build, "labels", shuffled)
    other_digest, other_accuracies = adapted(spec)
    assert other_digest == digest
    assert other_accuracies != accuracies, "the shuffled labels must have reached the site"


def test_the_site_grades_each_image_with_its_own_label(toy_benchmark: Benchmark) -> None:
    site = build_site(RunSpec.make(benchmark="toy"))
    for client, data in site.data.items():
        images, truth = toy_benchmark.build(client.rpartition("-")[0])
        rows = [next(i for i, image in enumerate(images) if torch.equal(image, own)) for own in data.images]
        assert site.labels[client].tolist() == truth[rows].tolist()


def test_a_client_that_trains_can_do_without_any_labels(toy_benchmark: Benchmark) -> None:
    spec = RunSpec.make(benchmark="toy", method="fedscal")
    site = build_site(spec)
    blind = type(site)(site.data, {}, site.network, site.objective, site.training, site.seed)
    judged = blind.evaluate(list(site.data)[:1], weights.snapshot(site.network.state_dict()))
    assert all("accuracy" not in row for row in judged.values())
