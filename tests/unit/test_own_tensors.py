"""What a program has at hand, tensors and a module, is adapted without a spec."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedscal
from fedscal.core.errors import DataRefused, ModelRefused, UsageError
from fedscal.data import cache
from fedscal.data.labels import labels
from fedscal.data.registry import benchmark
from fedscal.data.tensors import SiteImages, keep_tensors
from fedscal.data.views import AugmentedViews
from fedscal.models.module import around_classifier
from fedscal.models.registry import MODELS
from toys import CLASSES, SIDE, blobs, tensor_of

NAMES = ("top", "middle", "bottom")
SHAPE = (1, SIDE, SIDE)
SHORT: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "method": "fedloa"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def classifier(bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * SIDE * SIDE, CLASSES, bias=bias),
    )


@pytest.mark.parametrize("bias", [True, False])
def test_a_network_around_a_classifier_answers_as_it_does(bias: bool) -> None:
    module, images = classifier(bias).eval(), torch.rand(5, *SHAPE)
    network = around_classifier(module, SHAPE, CLASSES).eval()
    assert torch.allclose(network(images).logits, module(images), atol=1e-5)
    assert isinstance(module[-1], nn.Linear), "the user's own module is left as it was"  # type: ignore[index]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(classifier(), nn.Softmax(dim=1)), "does not make its output"),
        (nn.Flatten(), "no last nn.Linear with 3 outputs"),
        (nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 7)), "no last nn.Linear with 3 outputs"),
        (nn.Sequential(nn.Flatten(), nn.Linear(5, CLASSES)), "cannot be used on images of 1 x 6 x 6"),
    ],
)
def test_a_module_without_a_last_layer_for_the_classes_is_refused(module: nn.Module, said: str) -> None:
    with pytest.raises(ModelRefused, match=said):
        around_classifier(module, SHAPE, CLASSES)


def test_tensors_pairs_and_loaders_are_the_same_images() -> None:
    images, truth = blobs(10)
    loader: Iterable[list[Tensor]] = DataLoader(TensorDataset(images, truth), batch_size=4)
    name = keep_tensors({"pair": (images, truth), "loader": loader, "float": images / 255}, NAMES)
    data = benchmark(name)
    assert data.domains == ("float", "loader", "pair")
    for domain in data.domains:
        assert torch.equal(tensor_of(cache.images(data, domain)), images)
    assert torch.equal(tensor_of(labels(data, "loader")), truth)
    assert labels(data, "float") is None
    assert data.folder
    assert torch.equal(tensor_of(data.folder.ordered(NAMES[::-1]).labels("pair")), 2 - truth)


def test_other_content_has_another_name_and_the_same_content_the_same() -> None:
    images, _ = blobs(3)
    first = keep_tensors({"a": images})
    assert keep_tensors({"a": images.clone()}) == first
    assert keep_tensors({"a": images + 1}) != first
    assert keep_tensors({"b": images}) != first
    assert len(cache.images(benchmark(first), "a")) == 3


def test_damaged_and_unknown_tensors_are_refused(own_cache: Path) -> None:
    name = keep_tensors({"a": blobs(3)[0]})
    path = next(own_cache.glob("tensors/*/a.images.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(DataRefused, match="is damaged"):
        cache.images(benchmark(name), "a")
    for strange in ("tensors:0", "tensors:../../etc", "tensors:"):
        with pytest.raises(UsageError, match="no such tensors"):
            benchmark(strange)


@pytest.mark.parametrize(
    ("sites", "said"),
    [
        ({}, "there is no site"),
        ({"a/b": blobs(2)[0]}, "no name for a site"),
        ({"a": blobs(2)[0].float() - 128}, "mean= and std="),
        ({"a": blobs(2)[0][0]}, "images are"),
        ({"a": blobs(2)[0], "b": blobs(2)[0][:, :, 1:]}, "different shapes"),
        ({"a": (blobs(2)[0], torch.tensor([0, 9]))}, "of 3 classes are from 0 to 2, and these from 0 to 9"),
        ({"a": (blobs(2)[0], torch.tensor([0]))}, r"one whole number an image, 2 here, not .* of \(1,\)"),
        (
            {"a": (blobs(2)[0], torch.tensor([0.0, 1.0]))},
            "one whole number an image, 2 here, not torch.float",
        ),
        ({"a": ["no tensor"]}, "neither a tensor"),
        ({"a": blobs(2)[0].numpy()}, "torch.from_numpy makes one of an array"),
    ],
)
def test_what_is_no_images_is_refused(sites: dict[str, Any], said: str) -> None:
    with pytest.raises((DataRefused, UsageError), match=said):
        keep_tensors(sites, NAMES)


def test_labels_without_the_classes_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"a has labels: classes=\[...\] names what they mean"):
        keep_tensors({"a": blobs(2)})


def test_a_module_is_adapted_to_tensors_in_one_process_which_is_said(tmp_path: Path) -> None:
    images, truth = blobs(24)
    lines: list[str] = []
    sites: dict[str, SiteImages] = {"a": (images, truth), "b": blobs(20, 1)[0]}
    out = tmp_path / "run"
    run = fedscal.adapt(classifier(), sites, out=out, classes=NAMES, progress=lines.append, **SHORT)
    assert "one after the other" in lines[0]
    assert run.spec().workers == 1
    assert set(run.summary().accuracy.last.named) == {"a", "average"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(fedscal.predict(run, images, device="cpu").labels) == 24


def test_the_first_round_is_the_modules_own_answer(tmp_path: Path) -> None:
    images, truth = blobs(24)
    module = classifier().eval()
    right = (module(images / 255).argmax(dim=1) == truth).float().mean().item() * 100
    run = fedscal.adapt(module, {"a": (images, truth)}, out=tmp_path / "run", classes=NAMES, **SHORT)
    assert run.summary().accuracy.source_only.of("a") == pytest.approx(right)


def test_another_process_is_told_how_to_know_the_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fedscal.adapt(classifier(), {"a": blobs(9)[0]}, out=tmp_path / "run", classes=NAMES, **SHORT)
    monkeypatch.delitem(MODELS, run.spec().model)
    with pytest.raises(fedscal.FedscalError, match="register_module"):
        fedscal.load(run)
    fedscal.register_module(classifier())
    assert fedscal.load(run, "cpu").classes == NAMES


def test_a_network_is_trained_on_a_labelled_site_and_its_model_used_again(tmp_path: Path) -> None:
    images = torch.nn.functional.interpolate(blobs(24)[0], 16)
    sites: dict[str, SiteImages] = {
        "here": (images, blobs(24)[1]),
        "there": images.flip(0),
        "yonder": images[:12],
    }
    keys = {**SHORT, "source": "here", "pretrain_epochs": 1, "workers": 2}
    run = fedscal.adapt("convnet", sites, out=tmp_path / "first", classes=NAMES, **keys)
    again = fedscal.adapt(run.path / "model", {"there": images}, out=tmp_path / "again", **SHORT)
    assert again.summary().benchmark != run.summary().benchmark
    assert again.finished


@pytest.mark.parametrize(
    ("keys", "said"),
    [({"classes": NAMES, "workers": 2}, "one after the other"), ({}, "names what the module's outputs mean")],
)
def test_what_a_module_cannot_do_is_refused(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        fedscal.adapt(classifier(), {"a": blobs(2)[0]}, out=tmp_path / "run", **keys)
    with pytest.raises(UsageError, match="needs all three"):
        fedscal.adapt("model", {"a": blobs(2)[0]})  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="or a model's path or name, not function"):
        fedscal.adapt(lambda images: images, {"a": blobs(2)[0]}, out=tmp_path / "run")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="there is no folder"):
        fedscal.adapt(classifier(), tmp_path / "none", out=tmp_path / "run", classes=NAMES)


def test_a_module_is_adapted_to_a_folder_of_sites(tmp_path: Path) -> None:
    for site in ("a", "b"):
        (tmp_path / "sites" / site).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (9, 8), (60 * number, 0, 0)).save(tmp_path / "sites" / site / f"{number}.png")
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, CLASSES))
    keys = {**SHORT, "image_size": 8, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    run = fedscal.adapt(module, tmp_path / "sites", out=tmp_path / "run", classes=NAMES, **keys)
    assert set(run.rounds()[-1].domains) == {"a", "b"}
    views = fedscal.load(run, "cpu").module.views
    assert isinstance(views, AugmentedViews)
    assert (views.mean, views.side) == ((0.5,) * 3, 8)


def test_tensors_that_are_not_square_stay_as_they_are(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(4 * 9, CLASSES))
    images = torch.randint(256, (8, 1, 4, 9), dtype=torch.uint8)
    run = fedscal.adapt(module, {"a": images}, out=tmp_path / "run", classes=NAMES, **SHORT)
    assert fedscal.load(run, "cpu").shape == (1, 4, 9)
