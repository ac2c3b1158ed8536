"""Training cannot see labels: with other labels, every bit of the adapted model is the same."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedscal.core import weights
from fedscal.data.benchmark import Benchmark
from fedscal.data.labels import labels as true_labels
from fedscal.experiment import experiment as parts
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.run import adapt
from fedscal.experiment.spec import RunSpec
from fedscal.methods import METHODS
from fedscal.runtime.evaluate import JOINT
from fedscal.runtime.local import LocalDriver
from fedscal.server.rounds import federate
from toys import Kept, briefing, tensor_of


def built(spec: RunSpec) -> Experiment:
    """Return the experiment of a spec with its clients."""
    experiment = Experiment.build(spec)
    return experiment.with_clients(experiment.clients_of_data())


def adapted(spec: RunSpec) -> tuple[str, list[float]]:
    """Run a federation through the real site; return the models' digest and the clients' accuracies."""
    experiment = built(spec)
    site, rule = experiment.service(experiment.layout), experiment.rule
    source = weights.snapshot(site.network.state_dict())
    driver = LocalDriver(sorted(site.data), [site], Kept())
    state = rule.init(briefing(source, driver if site.describe else None, spec.rounds))
    for done in federate(rule, driver, state, experiment.schedule, spec.seed):
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

    def shuffled(data: Benchmark, domain: str) -> Tensor:
        found = tensor_of(true_labels(data, domain))
        return (found + torch.randint(1, 3, found.shape, generator=torch.Generator().manual_seed(7))) % 3

    monkeypatch.setattr(parts, "labels", shuffled)
    other_digest, other_accuracies = adapted(spec)
    assert other_digest == digest
    assert other_accuracies != accuracies, "the shuffled labels must have reached the site"


def test_the_site_grades_each_image_with_its_own_label(toy_benchmark: Benchmark) -> None:
    experiment = built(RunSpec.make(benchmark="toy"))
    site = experiment.service(experiment.layout)
    for client, data in site.data.items():
        images, truth = toy_benchmark.build(client.rpartition("-")[0])
        rows = [
            next(i for i, image in enumerate(images) if torch.equal(image, own))
            for own in tensor_of(data.images)
        ]
        assert site.labels[client].tolist() == truth[rows].tolist()


def test_a_client_that_trains_can_do_without_any_labels(toy_benchmark: Benchmark) -> None:
    experiment = built(RunSpec.make(benchmark="toy", method="fedscal"))
    site = experiment.service(experiment.layout)
    blind = type(site)(site.data, {}, site.network, site.objective, site.training, site.seed)
    model = weights.snapshot(site.network.state_dict())
    judged = blind.evaluate(list(site.data)[:1], model, model)
    assert all("accuracy" not in row and not JOINT & row.keys() for row in judged.values())


@pytest.mark.parametrize("asks", [True, False])
def test_a_model_is_compared_with_the_one_that_it_was_trained_from_where_that_taught(
    asks: bool, toy_benchmark: Benchmark, tmp_path: Path
) -> None:
    keys = {"method": "fedscal" if asks else "fedloa", "participation": 0.5, "rounds": 2}
    run = adapt(RunSpec.make(benchmark="toy", batch_size=8, pretrain_epochs=1, workers=1, **keys), tmp_path)
    first, *later = run.rounds()
    for record in (first, *later):
        for client, row in record.clients.items():
            took_part = client in record.participants
            assert math.isnan(row.both_wrong) == (not (took_part and asks))
            if took_part and asks:
                own, received = 100 - row.local_accuracy, 100 - row.received_accuracy
                assert max(0, own + received - 100) - 1e-9 <= row.both_wrong <= min(own, received) + 1e-9
    for client in later[0].participants if asks else ():
        received, sent = later[0].clients[client].received_accuracy, first.clients[client].accuracy
        assert received == sent, "the source model taught in round 1"
