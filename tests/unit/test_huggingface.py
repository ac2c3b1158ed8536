"""Backbones by transformers: small models of the real families, saved and loaded as a user has them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedscal.core.errors import ModelRefused
from fedscal.models.huggingface import HuggingFaceBackbone, normalisation
from fedscal.models.registry import build_network, fingerprint

if find_spec("transformers") is None:
    pytest.skip("needs the extra hf", allow_module_level=True)


def tiny(family: str) -> object:
    """Return a randomly initialised model of a family, a few thousand parameters large."""
    transformers = import_module("transformers")
    small = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}
    images = {"image_size": 32, "patch_size": 16}
    makers = {
        "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**small, **images)),
        "vit-classifier": lambda: transformers.ViTForImageClassification(
            transformers.ViTConfig(**small, **images)
        ),
        "deit": lambda: transformers.DeiTModel(transformers.DeiTConfig(**small, **images)),
        "deit-classifier": lambda: transformers.DeiTForImageClassificationWithTeacher(
            transformers.DeiTConfig(**small, **images)
        ),
        "dinov2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**small, **images)),
        "dinov2-classifier": lambda: transformers.Dinov2ForImageClassification(
            transformers.Dinov2Config(**small, **images)
        ),
        "convnext": lambda: transformers.ConvNextModel(
            transformers.ConvNextConfig(hidden_sizes=[4, 6, 8, 12], depths=[1, 1, 1, 1])
        ),
        "resnet": lambda: transformers.ResNetModel(
            transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8, 8, 12], depths=[1, 1, 1, 1])
        ),
        "resnet-classifier": lambda: transformers.ResNetForImageClassification(
            transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8, 8, 12], depths=[1, 1, 1, 1])
        ),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return makers[family]()


def saved(family: str, folder: Path) -> Path:
    tiny(family).save_pretrained(folder)  # type: ignore[attr-defined]
    return folder


FAMILIES = ["vit", "deit", "dinov2", "resnet"]


@pytest.mark.parametrize("family", [*FAMILIES, *(f"{name}-classifier" for name in FAMILIES), "convnext"])
def test_every_family_gives_one_feature_vector_an_image(tmp_path: Path, family: str) -> None:
    backbone = HuggingFaceBackbone(str(saved(family, tmp_path))).eval()
    features = backbone(torch.randn(2, 3, 32, 32))
    assert features.shape == (2, 12)
    assert torch.isfinite(features).all()


@pytest.mark.parametrize("family", [*FAMILIES, "convnext"])
@pytest.mark.parametrize("thaw", [1, 2])
def test_every_family_is_cut_between_its_layers(tmp_path: Path, family: str, thaw: int) -> None:
    name, shape, images = f"hf:{saved(family, tmp_path)}", (3, 32, 32), torch.randn(2, 3, 32, 32)
    whole, network = (build_network(name, shape, 3) for _ in range(2))
    trunk = network.take_trunk(thaw, name, shape)
    border = trunk(images)
    torch.testing.assert_close(network.eval()(border).logits, whole.eval()(images).logits)
    assert border.ndim == (3 if family in ("vit", "deit", "dinov2") else 4)
    assert all(p.requires_grad for p in network.backbone.parameters())
    count = {"trunk": trunk, "top": network.backbone, "whole": whole.backbone}
    sizes = {part: sum(p.numel() for p in module.parameters()) for part, module in count.items()}
    assert sizes["trunk"] + sizes["top"] == sizes["whole"], "each weight is in one of the two parts"


def test_a_transformers_feature_is_its_class_token(tmp_path: Path) -> None:
    model = tiny("vit").eval()  # type: ignore[attr-defined]
    model.save_pretrained(tmp_path)
    images = torch.randn(2, 3, 32, 32)
    backbone = HuggingFaceBackbone(str(tmp_path)).eval()
    torch.testing.assert_close(backbone(images), model(images).last_hidden_state[:, 0])
    assert all(parameter.requires_grad for parameter in backbone.parameters())


def test_a_folder_without_a_model_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="cannot be loaded") as error:
        HuggingFaceBackbone(str(tmp_path))
    assert "\n" not in str(error.value)


def test_a_pickled_model_is_not_loaded(tmp_path: Path) -> None:
    saved("vit", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelRefused, match="cannot be loaded"):
        HuggingFaceBackbone(str(tmp_path))


def test_the_model_says_how_images_are_normalised(tmp_path: Path) -> None:
    assert normalisation(str(tmp_path))[0] == (0.485, 0.456, 0.406)
    (tmp_path / "preprocessor_config.json").write_text(
        '{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
    )
    assert normalisation(str(tmp_path)) == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_the_papers_network_has_its_shape_its_rates_and_a_frozen_head(tmp_path: Path) -> None:
    transformers = import_module("transformers")
    shape = {"hidden_size": 384, "num_hidden_layers": 12, "num_attention_heads": 6, "intermediate_size": 1536}
    config = transformers.ViTConfig(**shape, image_size=224, patch_size=16)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path)
    network = build_network(f"hf:{tmp_path}", (3, 224, 224), 65)
    # ViT-S/16 without a classifier: 12 layers of 1,774,464, 197 x 384 places, patches, class token and norm.
    assert sum(p.numel() for p in network.backbone.parameters()) == 21_665_664
    assert (network.bottleneck.in_features, network.bottleneck.out_features) == (384, 256)
    assert (network.head.in_features, network.head.out_features) == (256, 65)
    assert not network.norms
    network.freeze_head()
    backbone, new = network.parameter_groups(0.03)
    assert (backbone["lr"], new["lr"]) == (pytest.approx(0.003), 0.03)
    assert sum(p.numel() for p in backbone["params"]) == 21_665_664
    assert {id(p) for p in new["params"]} == {id(p) for p in network.bottleneck.parameters()}
    stored = load_file(tmp_path / "model.safetensors")
    kept = network.backbone.layers.state_dict()  # type: ignore[union-attr]
    assert len(stored) == len(kept)
    assert sum(t.double().sum() for t in stored.values()) == pytest.approx(
        float(sum(t.double().sum() for t in kept.values()))
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.pop("layernorm.weight"), "its weights lack layernorm.weight."),
        (lambda w: w.update(strange=torch.ones(2)), "hold, beyond the model, strange."),
        (lambda w: w.update({"layernorm.weight": torch.ones(13)}), "in another shape layernorm.weight."),
        (lambda w: [w.pop(name) for name in list(w) if "layer.0." in name], " more."),
    ],
    ids=["missing", "extra", "misshaped", "many"],
)
def test_weights_that_are_not_exactly_the_models_are_refused(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], object], said: str
) -> None:
    file = saved("vit", tmp_path) / "model.safetensors"
    found = load_file(file)
    change(found)
    save_file(found, file, metadata={"format": "pt"})
    with pytest.raises(ModelRefused) as error:
        build_network(f"hf:{tmp_path}", (3, 32, 32), 3)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_halves_become_float32_and_grey_images_three_channels(tmp_path: Path) -> None:
    tiny("vit").half().save_pretrained(tmp_path)  # type: ignore[attr-defined]
    network = build_network(f"hf:{tmp_path}", (1, 32, 32), 3)
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert network.eval()(torch.zeros(2, 1, 32, 32)).logits.shape == (2, 3)


def test_images_of_another_size_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    saved("vit", tmp_path)
    with pytest.raises(ModelRefused, match="cannot take images of 3 x 64 x 64"):
        build_network(f"hf:{tmp_path}", (3, 64, 64), 3)


def test_other_weights_in_the_same_folder_are_another_model(tmp_path: Path) -> None:
    name, file = f"hf:{saved('vit', tmp_path)}", tmp_path / "model.safetensors"
    before = fingerprint(name)
    save_file({k: v + 1 for k, v in load_file(file).items()}, file, metadata={"format": "pt"})
    assert fingerprint(name) != before
    assert fingerprint("convnet") == fingerprint("hf:no/such-folder") == ""


def test_a_repository_that_the_hubs_cache_holds_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    place = tmp_path / "models--someone--vit"
    saved("vit", place / "snapshots" / "0123").joinpath("preprocessor_config.json").write_text(
        '{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.5, 0.5]}'
    )
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0123")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert normalisation("someone/vit") == ((0.1, 0.2, 0.3), (0.5, 0.5, 0.5))
    assert build_network("hf:someone/vit", (3, 32, 32), 3).bottleneck.in_features == 12
    with pytest.raises(ModelRefused, match="hf:someone/else cannot be loaded"):
        build_network("hf:someone/else", (3, 32, 32), 3)
