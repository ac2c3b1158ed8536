"""Backbones by timm: what is said where it cannot be imported, and the real thing where it can."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fedscal.core.errors import ModelRefused, UsageError
from fedscal.models.registry import build_network, check_model, fingerprint, normalisation
from fedscal.models.timm_models import TimmBackbone

try:
    import timm
except Exception:  # not installed, or a torchvision that does not fit torch
    timm = None
real = pytest.mark.skipif("timm is None", reason="timm cannot be imported here")
SMALL = "test_vit"  # a few thousand parameters, made by timm's authors for tests


@pytest.fixture
def in_place_of_timm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Put a ``timm`` in front of everything that runs some code when it is imported."""

    def put(code: str) -> None:
        (tmp_path / "timm.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)

    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    return put


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_torchvision", "needs no_such_torchvision: pip install 'fedscal\\[timm\\]'"),
        ("raise RuntimeError('operator torchvision::nms does not exist')", "nms does not exist.*hf:<folder>"),
    ],
    ids=["lacks a package", "torchvision does not fit"],
)
def test_a_timm_that_cannot_be_imported_is_a_sentence(
    in_place_of_timm: Callable[[str], None], code: str, said: str
) -> None:
    in_place_of_timm(code)
    check_model("timm:resnet18")  # names are checked without an import
    with pytest.raises(UsageError, match=said) as error:
        build_network("timm:resnet18", (3, 32, 32), 3)
    assert "\n" not in str(error.value)


@real
@pytest.mark.parametrize(
    ("name", "side"), [(SMALL, 160), ("test_resnet", 32), ("test_convnext", 32), ("test_efficientnet", 32)]
)
def test_a_model_gives_one_feature_vector_an_image(name: str, side: int) -> None:
    network = build_network(f"timm:{name}", (1, side, side), 3, seed=1).eval()
    found = network(torch.randn(2, 1, side, side))
    assert found.logits.shape == (2, 3)
    assert network.backbone_rate == 1.0, "random weights learn at the full rate"
    again = build_network(f"timm:{name}", (1, side, side), 3, seed=1)
    assert all(a.equal(b) for a, b in zip(network.parameters(), again.parameters(), strict=True))


@real
@pytest.mark.parametrize(
    ("name", "side"), [(SMALL, 160), ("test_resnet", 32), ("test_convnext", 32), ("test_efficientnet", 32)]
)
@pytest.mark.parametrize("thaw", [1, 2])
def test_a_model_is_cut_between_its_blocks(name: str, side: int, thaw: int) -> None:
    shape, images = (3, side, side), torch.randn(2, 3, side, side)
    whole, network = (build_network(f"timm:{name}", shape, 3) for _ in range(2))
    trunk = network.take_trunk(thaw, name, shape)
    torch.testing.assert_close(network.eval()(trunk(images)).logits, whole.eval()(images).logits)
    parts = [sum(p.numel() for p in part.parameters()) for part in (trunk, network.backbone, whole.backbone)]
    assert parts[0] + parts[1] == parts[2], "each weight is in one of the two parts"


@real
def test_a_model_without_blocks_of_a_known_name_is_refused() -> None:
    network = build_network("timm:swin_tiny_patch4_window7_224", (3, 224, 224), 3)
    with pytest.raises(UsageError, match="does not say where it can be cut"):
        network.take_trunk(1, "swin", (3, 224, 224))


@real
def test_the_papers_network_by_timm() -> None:
    network = build_network("timm:vit_small_patch16_224", (3, 224, 224), 65)
    assert sum(p.numel() for p in network.backbone.parameters()) == 21_665_664
    assert normalisation("timm:vit_small_patch16_224") == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def weights_file(path: Path, change: Callable[[dict[str, torch.Tensor]], Any] = lambda w: None) -> str:
    """Write the weights of a whole classifier as its users have them, changed as a test asks."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        found = dict(timm.create_model(SMALL).state_dict())
    change(found)
    save_file(found, path)
    return f"timm:{SMALL}@{path}"


@real
def test_a_file_fills_the_backbone_and_its_classifier_is_left_out(tmp_path: Path) -> None:
    name = weights_file(tmp_path / "w.safetensors")
    network = build_network(name, (3, 160, 160), 3)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        whole = timm.create_model(SMALL).eval()
    images = torch.randn(2, 3, 160, 160)
    features = whole.forward_head(whole.forward_features(images), pre_logits=True)
    torch.testing.assert_close(network.eval().backbone(images), features)
    assert network.backbone_rate == 0.1
    assert fingerprint(name)


@real
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("norm.weight"), "its weights lack norm.weight."),
        (lambda w: w.update(strange=torch.ones(2)), "beyond the model, strange."),
        (lambda w: w.update({"norm.weight": torch.ones(3)}), "in another shape norm.weight."),
    ],
    ids=["missing", "extra", "misshaped"],
)
def test_weights_that_are_not_exactly_the_models_are_refused(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], Any], said: str
) -> None:
    with pytest.raises(ModelRefused) as error:
        TimmBackbone(weights_file(tmp_path / "w.safetensors", change).removeprefix("timm:"))
    assert said in str(error.value)


@real
@pytest.mark.parametrize("place", ["no_such_model", f"{SMALL}@/no/such/file.safetensors"])
def test_what_is_not_there_is_named(place: str) -> None:
    with pytest.raises(ModelRefused, match=r"no_such_model|/no/such/file"):
        TimmBackbone(place)
    if "@" not in place:
        with pytest.raises(UsageError, match="timm knows no such model"):
            normalisation(f"timm:{place}")


@real
def test_timms_own_weights_that_cannot_be_had_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", "/no/such/cache")
    with pytest.raises(ModelRefused, match="cannot be made by timm") as error:
        TimmBackbone(f"{SMALL}@pretrained")
    assert "\n" not in str(error.value)
