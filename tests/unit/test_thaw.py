"""A trunk with thawed blocks: where it is cut, what is trained, kept, delivered and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedscal.core.errors import ModelRefused, OutOfSpace, UsageError
from fedscal.core.types import ClientId
from fedscal.core.weights import digest, snapshot
from fedscal.data.benchmark import Benchmark
from fedscal.data.labels import known_labels
from fedscal.deploy.classifier import Classifier
from fedscal.deploy.onnx import export_onnx
from fedscal.deploy.site import sites_of, use_site
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.pretrain import SourceTraining, pretrain
from fedscal.experiment.run import adapt, resume
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.source import source_model
from fedscal.experiment.spec import RunSpec
from fedscal.models.cut import cut, grouped
from fedscal.models.network import Network
from fedscal.models.registry import MODELS, build_network, pretrained_is_installed
from fedscal.models.statistics import SiteStatistics, measure
from fedscal.models.store import load_model
from fedscal.runtime.evaluate import accuracy
from toys import CLASSES, SIDE, NoiseViews, backward, blobs, tensor_of

SHAPE = (1, SIDE, SIDE)
KEYS: dict[str, Any] = {
    "benchmark": "toy",
    "model": "deep",
    "method": "fedsite",
    "trunk": "frozen",
    "workers": 1,
    "rounds": 2,
    "pretrain_epochs": 3,
}
VIEW = NoiseViews().evaluate


def deep_network() -> Network:
    """Return three convolutions, each with BatchNorm, whose statistics are not those of a fresh layer."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 4), (4, 6), (6, 8)):
            norm = nn.BatchNorm2d(outputs)
            norm.running_mean = 0.1 * torch.randn(outputs)
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), norm, nn.ReLU()]
        backbone = nn.Sequential(*layers, nn.Flatten())
        return Network(backbone, 8 * SIDE * SIDE, CLASSES, bottleneck=5, backbone_rate=0.5)


def thawed(thaw: int) -> tuple[nn.Module, Network]:
    network = deep_network()
    network.standardise_features()
    return network.take_trunk(thaw, "deep", SHAPE), network


@pytest.fixture
def deep(toy_benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """Register ``model=deep``."""
    monkeypatch.setitem(MODELS, "deep", lambda shape, classes: deep_network())
    return toy_benchmark


@pytest.mark.parametrize(("thaw", "border"), [(0, (8 * SIDE * SIDE,)), (1, (6, 6, 6)), (2, (4, 6, 6))])
def test_the_two_parts_are_the_whole_network(thaw: int, border: tuple[int, ...]) -> None:
    whole, (trunk, network) = deep_network(), thawed(thaw)
    whole.standardise_features()
    images = VIEW(blobs(20)[0])
    assert trunk(images).shape == (20, *border)
    assert torch.equal(network.eval()(trunk(images)).logits, whole.eval()(images).logits)


def test_gradient_reaches_thawed_blocks_and_nothing_of_the_trunk() -> None:
    trunk, network = thawed(1)
    logits = network.train()(trunk(VIEW(blobs(20)[0]))).logits
    backward(logits.logsumexp(dim=1).sum())
    assert all(
        tensor_of(p.grad).abs().sum() > 0 for name, p in network.named_parameters() if "weight" in name
    )
    assert all(p.grad is None and not p.requires_grad for p in trunk.parameters())
    blocks, new = network.parameter_groups(0.1)
    assert (blocks["lr"], new["lr"]) == (0.05, 0.1)
    assert {id(p) for p in blocks["params"]} == {id(p) for p in network.backbone.parameters()}


def test_batch_norm_of_thawed_blocks_keeps_the_trunk_s_statistics() -> None:
    trunk, network = thawed(1)
    maps, before = trunk(VIEW(blobs(20)[0])), digest(dict(network.named_buffers()))
    together, alone = network.train()(maps).logits, network(maps[:1]).logits
    torch.testing.assert_close(together[:1], alone)
    assert digest(dict(network.named_buffers())) == before
    whole = deep_network().train()
    assert any(m.training for m in whole.modules() if isinstance(m, nn.BatchNorm2d)), (
        "trunk=trained is as ever"
    )


class Halves(nn.Module):
    """A backbone of two layers that are not used in the order of their names."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.second, self.first, self.right = nn.Linear(4, 2), nn.Linear(9, 4), right

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.second(self.first(images.flatten(1)))
        return features

    def take_apart(self) -> list[nn.Module]:
        first = nn.Sequential(nn.Flatten(), self.first)
        return [first, self.second if self.right else nn.Linear(4, 2)]


def test_a_backbone_of_ones_own_says_how_it_is_cut_and_is_held_against_it() -> None:
    example = torch.randn(2, 1, 3, 3)
    trunk, top = cut(Halves(right=True), 1, "mine", example)
    assert trunk(example).shape == (2, 4)
    assert top(trunk(example)).shape == (2, 2)
    with pytest.raises(ModelRefused, match=r"model=mine cannot be cut .* do not make its features"):
        cut(Halves(right=False), 1, "mine", example)


def test_a_block_begins_at_every_layer_with_a_matrix() -> None:
    assert [len(list(block.children())) for block in grouped(list(deep_network().backbone.children()))] == [
        *(3, 3, 4),
    ]
    assert len(grouped([nn.Flatten(), nn.ReLU()])) == 1


@pytest.mark.parametrize(
    ("backbone", "thaw", "said"),
    [
        (lambda: deep_network().backbone, 3, "thaw=3: model=x has 3 blocks; trunk=trained trains the whole"),
        (lambda: deep_network().backbone, 9, "has 3 blocks"),
        (lambda: nn.Flatten(), 1, "thaw=1: model=x does not say where it can be cut"),
        (lambda: nn.Sequential(nn.Flatten()), 1, "model=x has one block"),
    ],
    ids=["all", "more", "one module", "no weights"],
)
def test_what_cannot_be_cut_is_refused(backbone: Callable[[], nn.Module], thaw: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cut(backbone(), thaw, "x", torch.randn(2, *SHAPE))


def test_thaw_goes_with_a_frozen_trunk_and_leaves_digests_of_before() -> None:
    with pytest.raises(UsageError, match="thaw goes with trunk=frozen"):
        RunSpec.make(benchmark="icons-64", source="solid", thaw=1)
    frozen = {"benchmark": "icons-64", "source": "solid", "trunk": "frozen"}
    assert RunSpec.make(**frozen, thaw=0).digest() == RunSpec.make(**frozen).digest()
    assert RunSpec.make(**frozen, thaw=1).digest() != RunSpec.make(**frozen).digest()


def test_source_training_moves_thawed_blocks_and_measures_what_they_make() -> None:
    trunk, network = thawed(1)
    images, labels = blobs(60)
    maps = trunk(VIEW(images)).detach()
    views = _AsTheyAre()
    before = snapshot(network.backbone.state_dict())
    pretrain(network, maps, labels, views, SourceTraining(epochs=2, held_out=0.1), seed=0)
    moved = [name for name, tensor in network.backbone.state_dict().items() if not tensor.equal(before[name])]
    assert sorted(moved) == ["0.0.bias", "0.0.weight", "0.1.bias", "0.1.weight"]
    measured = measure(network, maps, views.evaluate)["standardise.running_mean"]
    stored = network.get_buffer("standardise.running_mean").double()
    torch.testing.assert_close(stored, measured, atol=0.1, rtol=0.3)  # of 54 of the 60 images


class _AsTheyAre:
    """Views of maps in memory."""

    def evaluate(self, images: Tensor) -> Tensor:
        return images

    def weak(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return images

    strong = weak


def test_only_what_is_trained_travels(deep: Benchmark) -> None:
    experiments = {thaw: Experiment.build(RunSpec.make(**KEYS, thaw=thaw)) for thaw in (0, 1, 2)}
    sent = {thaw: set(experiment.network.state_dict()) for thaw, experiment in experiments.items()}
    assert sent[0] == {"bottleneck.weight", "bottleneck.bias", "head.weight", "head.bias"} | {
        *("standardise.running_mean", "standardise.running_var"),
    }
    assert sent[0] < sent[1] < sent[2]
    banks = [tensor_bank.shape for e in experiments.values() if (tensor_bank := e.bank)]
    assert banks == [(8 * SIDE * SIDE,), (6, SIDE, SIDE), (4, SIDE, SIDE)]
    trunks = {experiment.card.trunk_sha256 for experiment in experiments.values()}
    assert len(trunks) == 3, "each hash is of the blocks that stay frozen"


def test_the_delivered_model_is_the_one_that_was_judged(deep: Benchmark, tmp_path: Path) -> None:
    adapt(RunSpec.make(**KEYS, thaw=1), tmp_path / "run")
    experiment = Experiment.build(RunSpec.make(**KEYS, thaw=1))
    last = RunDirectory(tmp_path / "run").rounds()[-1]
    layout = experiment.clients_of_data()
    for client, (domain, rows) in layout.rows.items():
        classifier = Classifier.open(tmp_path / "run")
        assert classifier.card.thaw == 1
        use_site(classifier, client)
        pixels = tensor_of(experiment.data.build(domain)[0])[rows]
        truth = known_labels(experiment.data, domain)[rows]
        answers = classifier.probabilities(pixels).argmax(dim=1)
        assert accuracy(answers, truth) == pytest.approx(last.client(client).accuracy)
    source = Classifier.open(tmp_path / "run" / "model" / "source.safetensors")
    assert sites_of(source) == {}, "the statistics are of the last round's activations"
    top, before = (c.module.network.backbone.state_dict() for c in (classifier, source))
    assert any(not top[name].equal(before[name]) for name in top), "clients moved the thawed blocks"


@pytest.mark.long
def test_a_thawed_model_is_exported(deep: Benchmark, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    adapt(RunSpec.make(**KEYS, thaw=1), tmp_path / "run")
    gap = export_onnx(Classifier.open(tmp_path / "run"), tmp_path / "model.onnx", blobs(20)[0])
    assert gap < 1e-4


def test_a_given_model_brings_its_cut_and_another_is_refused(deep: Benchmark, tmp_path: Path) -> None:
    spec = RunSpec.make(**KEYS, thaw=1)
    path = str(source_model(Experiment.build(spec)).path)
    given = {"benchmark": "toy", "method": "fedsite", "source_model": path}
    assert (RunSpec.make(**given).thaw, RunSpec.make(**given).trunk) == (1, "frozen")
    assert RunSpec.make(**given, thaw="1").thaw == 1
    with pytest.raises(UsageError, match="thaw=2: the given model has thaw=1"):
        RunSpec.make(**given, thaw=2)


class _Stopped(Exception):
    """Somebody pulled the plug."""


class _StopsInRoundTwo(Callback):
    def client(self, client: ClientId) -> None:
        self.answers = getattr(self, "answers", 0) + 1
        if self.answers > 4:  # the four clients of the first round have answered
            raise _Stopped


def test_a_resumed_run_has_the_same_bits(deep: Benchmark, tmp_path: Path) -> None:
    spec = RunSpec.make(**KEYS, thaw=1)
    whole = adapt(spec, tmp_path / "whole")
    with pytest.raises(_Stopped):
        adapt(spec, tmp_path / "stopped", _StopsInRoundTwo())
    assert [line.round for line in RunDirectory(tmp_path / "stopped").rounds()] == [0, 1]
    resumed = resume(tmp_path / "stopped")
    hashes = [load_model(run.path / "model", "last")[1].weights_sha256 for run in (whole, resumed)]
    assert hashes[0] == hashes[1]


def test_features_that_do_not_fit_on_the_disk_are_refused_before_they_are_computed(
    deep: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = Experiment.build(RunSpec.make(**KEYS, thaw=2, feature_views=2))
    assert experiment.bank
    monkeypatch.setattr("fedscal.core.files.shutil.disk_usage", lambda _: _Disk)
    with pytest.raises(OutOfSpace, match=r"the features of plain take 51,840 bytes, and .* has 51,839"):
        experiment.images("plain")  # 30 images x 3 views x 4 maps of 36 floats


class _Disk:
    free = 30 * 3 * 4 * 36 * 4 - 1


@pytest.mark.skipif(not pretrained_is_installed(), reason="needs fedscal[efficientnet]")
@pytest.mark.parametrize("thaw", [1, 2, 17])
def test_efficientnet_is_cut_at_every_block(thaw: int) -> None:
    name, shape, images = "efficientnet-lite0", (1, 32, 32), torch.randn(3, 1, 32, 32)
    whole, network = (build_network(name, shape, 4, standardise=True) for _ in range(2))
    trunk = network.take_trunk(thaw, name, shape)
    assert torch.equal(network.eval()(trunk(images)).logits, whole.eval()(images).logits)
    with pytest.raises(UsageError, match="has 18 blocks; trunk=trained"):
        whole.take_trunk(18, name, shape)


def test_statistics_of_a_site_are_those_of_what_thawed_blocks_make() -> None:
    trunk, network = thawed(1)
    maps = trunk(VIEW(blobs(40)[0]))
    SiteStatistics().apply(network, maps, lambda batch: batch)
    expected = network.eval().backbone(maps).mean(dim=0)
    torch.testing.assert_close(network.get_buffer("standardise.running_mean"), expected)
    assert list(network.normalisers) == ["standardise"]
