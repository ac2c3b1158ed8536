"""Source pre-training on three easy classes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedscal.client.descent import Descent
from fedscal.client.style import style
from fedscal.core import weights
from fedscal.core.errors import DataRefused, UsageError
from fedscal.core.rng import stream
from fedscal.data.benchmark import Benchmark
from fedscal.data.registry import BENCHMARKS
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.pretrain import Epoch, SourceTraining, Trained, held_out_rows, pretrain
from fedscal.experiment.source import poorly_trained, source_model, training_epochs, used_as_it_is
from fedscal.experiment.spec import RunSpec
from fedscal.models.network import Network, predict
from toys import NoiseViews, blobs, tiny_network

IMAGES, LABELS = blobs(60)
RECIPE = SourceTraining(epochs=8, batch_size=16, lr=0.05)


def train(recipe: SourceTraining = RECIPE, seed: int = 0, network: Network | None = None) -> Trained:
    return pretrain(network or tiny_network(), IMAGES, LABELS, NoiseViews(), recipe, seed)


def test_training_learns_and_reports_the_accuracy_on_held_out_images() -> None:
    network = tiny_network()
    trained = train(network=network)
    found, accuracy = trained.weights, trained.accuracy
    held_out = torch.randperm(60, generator=stream(0, "source-split"))[:6]
    network.load_state_dict(found)
    predicted = predict(network, IMAGES[held_out], NoiseViews().evaluate).logits.argmax(dim=1)
    assert accuracy == pytest.approx(100 * (predicted == LABELS[held_out]).float().mean().item())
    assert accuracy > 80
    assert all(torch.isfinite(tensor).all() for tensor in found.values())


def test_training_repeats_bit_for_bit_and_depends_on_the_seed() -> None:
    first, again, other = (weights.digest(train(seed=seed).weights) for seed in (0, 0, 1))
    assert first == again != other


def test_each_epoch_is_told_with_its_loss_and_accuracy_and_telling_moves_no_bit() -> None:
    told: list[Epoch] = []
    recipe = replace(RECIPE, dropout=0.5)
    trained = pretrain(tiny_network(), IMAGES, LABELS, NoiseViews(), recipe, 0, told.append)
    assert len(told) == RECIPE.epochs
    assert told[-1].loss < told[0].loss
    assert told[-1].accuracy == trained.accuracy
    assert str(Epoch(1.234, 56.78)) == "loss 1.23, 56.8 % of held-out images right"
    assert weights.digest(trained.weights) == weights.digest(train(recipe).weights)


@pytest.mark.parametrize(("classes", "least"), [(2, 75), (10, 55), (100, 50.5)])
def test_less_than_half_of_the_way_from_chance_is_poor(classes: int, least: float) -> None:
    assert poorly_trained(least, classes) == poorly_trained(None, classes) == ""
    text = poorly_trained(least - 0.1, classes)
    assert f"right on {least - 0.1:.1f} % of held-out images" in text
    assert "pretrain_epochs" in text
    assert "labels" in text


def test_a_source_model_is_trained_with_progress(toy_benchmark: Benchmark) -> None:
    told: list[str] = []

    class Told(Callback):
        def epoch(self, done: Epoch) -> None:
            told.append("epoch")

        def advance(self) -> None:
            told.append("advance")

    experiment = Experiment.build(RunSpec.make(benchmark="toy", pretrain_epochs=2))
    source_model(experiment, Told())
    assert told == ["epoch", "advance"] * 2


@pytest.mark.parametrize(("steps", "epochs"), [(0, 2), (1, 2), (40, 40)])
def test_few_source_images_are_seen_in_more_epochs(toy_benchmark: Benchmark, steps: int, epochs: int) -> None:
    # 30 images are less than a batch of 64 an epoch, so an epoch is a step.
    spec = RunSpec.make(benchmark="toy", pretrain_epochs=2, pretrain_steps=steps)
    assert training_epochs(Experiment.build(spec)) == epochs


def test_the_head_is_trained_too() -> None:
    start = tiny_network().state_dict()
    assert not torch.equal(train().weights["head.weight"], start["head.weight"])


def test_held_out_labels_teach_nothing() -> None:
    held_out = torch.randperm(60, generator=stream(0, "source-split"))[:6]
    wrong = LABELS.clone()
    wrong[held_out] = (wrong[held_out] + 1) % 3
    spoilt = pretrain(tiny_network(), IMAGES, wrong, NoiseViews(), RECIPE, 0)
    assert weights.digest(spoilt.weights) == weights.digest(train().weights)
    assert spoilt.accuracy < 20


def test_every_epoch_is_announced_and_the_rate_decays(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    plain = Descent.step

    def step(descent: Descent, loss: Tensor, decay: float) -> None:
        rates.append(descent.rates[-1][1] * decay)
        plain(descent, loss, decay)

    monkeypatch.setattr(Descent, "step", step)
    told: list[Epoch] = []
    recipe = SourceTraining(epochs=2, batch_size=16, lr=0.1)
    pretrain(tiny_network(), IMAGES, LABELS, NoiseViews(), recipe, 0, told.append)
    assert len(told) == 2
    # 54 images are 3 whole batches an epoch, 6 steps in all: 0.1 (1 + 10 t/6)^-0.75.
    assert rates == pytest.approx([0.1 * (1 + 10 * t / 6) ** -0.75 for t in range(6)])


def test_the_gaussians_are_those_of_the_training_images_features() -> None:
    network = tiny_network()
    found = train(network=network).gaussians
    kept = torch.randperm(60, generator=stream(0, "source-split"))[6:]
    features = predict(network, IMAGES[kept], NoiseViews().evaluate).features
    for label in range(3):
        mine = features[LABELS[kept] == label]
        torch.testing.assert_close(found["mean"][label], mine.mean(dim=0))
        torch.testing.assert_close(found["variance"][label], mine.var(dim=0, correction=0))
        assert found["share"][label].item() == pytest.approx(len(mine) / 54)


SIZES = (30, 4, 3, 9, 2, 5, 7, 6, 8, 1, 25)
GROUPS = torch.repeat_interleave(torch.arange(len(SIZES)) * 10, torch.tensor(SIZES))


@pytest.mark.parametrize("seed", range(5))
def test_a_group_is_never_on_both_sides_and_about_the_share_is_held_out(seed: int) -> None:
    shuffled = GROUPS[torch.randperm(100, generator=stream(seed, "test"))]
    test, train = held_out_rows(100, 0.1, seed, shuffled)
    assert sorted([*test.tolist(), *train.tolist()]) == list(range(100))
    assert set(shuffled[test].tolist()).isdisjoint(shuffled[train].tolist())
    assert 8 <= len(test) <= 15
    again, _ = held_out_rows(100, 0.1, seed, shuffled)
    assert torch.equal(test, again)


def test_seeds_hold_out_other_groups() -> None:
    assert len({tuple(held_out_rows(100, 0.1, seed, GROUPS)[0].tolist()) for seed in range(5)}) > 1


def test_the_smallest_group_is_held_out_if_all_are_too_large() -> None:
    test, train = held_out_rows(10, 0.1, 0, torch.tensor([1] * 4 + [2] * 6))
    assert test.tolist() == [0, 1, 2, 3]
    assert len(train) == 6


def test_one_group_alone_cannot_be_parted() -> None:
    with pytest.raises(DataRefused, match="one group"):
        held_out_rows(10, 0.1, 0, torch.zeros(10, dtype=torch.int64))


def test_training_keeps_to_the_groups() -> None:
    groups = torch.arange(60) // 6
    test, _ = held_out_rows(60, 0.1, 0, groups)
    wrong = LABELS.clone()
    wrong[test] = (wrong[test] + 1) % 3
    plain, spoilt = (
        pretrain(tiny_network(), IMAGES, truth, NoiseViews(), RECIPE, 0, groups=groups)
        for truth in (LABELS, wrong)
    )
    assert weights.digest(spoilt.weights) == weights.digest(plain.weights)
    assert weights.digest(plain.weights) != weights.digest(train().weights)
    assert spoilt.accuracy < 20


def test_the_source_model_of_a_run_keeps_to_its_benchmarks_groups(
    toy_benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    grouped = replace(toy_benchmark, groups=lambda domain: torch.zeros(30, dtype=torch.int64))
    monkeypatch.setitem(BENCHMARKS, "toy", grouped)
    with pytest.raises(DataRefused, match="one group"):
        source_model(Experiment.build(RunSpec.make(benchmark="toy", pretrain_epochs=1)))


def test_how_images_are_seen_is_part_of_what_decides_a_source_model(toy_benchmark: Benchmark) -> None:
    ways: list[dict[str, str]] = [{}, {"mirror": "no"}, {"crops": "0.5"}, {"framing": "whole"}]
    specs = [RunSpec.make(benchmark="toy", pretrain_epochs=1, **keys) for keys in ways]
    assert len({source_model(Experiment.build(spec)).path for spec in specs}) == len(ways)


def test_images_are_trained_in_styles_that_are_drawn_for_them() -> None:
    styles = torch.stack([style(blobs(20, seed, 40)[0])["amplitude"] for seed in (1, 2)])
    seen: list[torch.Tensor] = []

    class Watched(NoiseViews):
        def weak(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            seen.append(images)
            return super().weak(images, generator)

    def trained(styles: torch.Tensor | None) -> str:
        seen.clear()
        made = pretrain(tiny_network(), IMAGES, LABELS, Watched(), RECIPE, 0, styles=styles)
        return weights.digest(made.weights)

    plain = trained(None)
    assert plain == weights.digest(train().weights)
    assert trained(styles) == trained(styles) != plain
    # Each image has the brightness of one of the two styles, up to rounding, and both are drawn.
    levels = torch.cat(seen).double().mean(dim=(1, 2, 3)) / 255
    gaps = (levels[:, None] - styles[:, 0, 1, 1]).abs()
    assert gaps.amin(dim=1).max() < 0.01
    assert len(set(gaps.argmin(dim=1).tolist())) == 2


def test_the_clients_decide_a_source_model_only_if_it_is_trained_in_their_styles(
    toy_benchmark: Benchmark,
) -> None:
    def path(**keys: object) -> str:
        spec = RunSpec.make(benchmark="toy", pretrain_epochs=1, **keys)
        return str(source_model(Experiment.build(spec)).path)

    plain = path(method="fedloa")
    assert (
        plain == path(method="fedloa", clients_per_domain=3) == path(method="ladd", pretrain_styles="source")
    )
    styled = path(method="ladd")
    assert styled == path(method="fedloa", pretrain_styles="clients")
    assert len({plain, styled, path(method="ladd", clients_per_domain=3)}) == 3


def test_a_given_source_model_is_used_as_it_is_and_that_is_said(toy_benchmark: Benchmark) -> None:
    said = {}
    for name, styles in {"plain": "source", "styled": "clients"}.items():
        spec = RunSpec.make(benchmark="toy", method="ladd", pretrain_epochs=1, pretrain_styles=styles)
        made = source_model(Experiment.build(spec))
        given = Experiment.build(RunSpec.make(benchmark="toy", method="ladd", source_model=str(made.path)))
        assert given.styles is None
        source = source_model(given)
        assert weights.digest(source.weights) == weights.digest(made.weights)
        said[name] = used_as_it_is(given, source)
    assert "used as it is: it was not trained in the clients' styles" in said["plain"]
    assert said["styled"] == ""


def test_styles_want_pixels() -> None:
    keys = {"benchmark": "icons-64", "source": "solid", "method": "fedloa", "trunk": "frozen"}
    with pytest.raises(UsageError, match="features have no style"):
        RunSpec.make(**keys, model="efficientnet-lite0", pretrain_styles="clients")
