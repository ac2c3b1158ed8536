"""Backbones by transformers: small models of the real families, saved and loaded as a user has them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedscal.errors import ModelRefused
from fedscal.models.huggingface import HuggingFaceBackbone, normalisation

transformers = pytest.importorskip("transformers")


def tiny(family: str) -> object:
    """Return a randomly initialised model of a family, a few thousand parameters large."""
    small = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 24}
    images = {"image_size": 32, "patch_size": 16}
    makers = {
        "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**small, **images)),
        "vit-classifier": lambda: transformers.ViTForImageClassification(
            transformers.ViTConfig(**small, **images)
        ),
        "deit": lambda: transformers.DeiTModel(transformers.DeiTConfig(**small, **images)),
        "dinov2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**small, **images)),
        "convnext": lambda: transformers.ConvNextModel(
            transformers.ConvNextConfig(hidden_sizes=[4, 6, 8, 12], depths=[1, 1, 1, 1])
        ),
        "resnet": lambda: transformers.ResNetModel(
            transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8, 8, 12], depths=[1, 1, 1, 1])
        ),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return makers[family]()


def saved(family: str, folder: Path) -> Path:
    tiny(family).save_pretrained(folder)  # type: ignore[attr-defined]
    return folder


@pytest.mark.parametrize("family", ["vit", "vit-classifier", "deit", "dinov2", "convnext", "resnet"])
def test_every_family_gives_one_feature_vector_an_image(tmp_path: Path, family: str) -> None:
    backbone = HuggingFaceBackbone(str(saved(family, tmp_path))).eval()
    features = backbone(torch.randn(2, 3, 32, 32))
    assert features.shape == (2, 12)
    assert torch.isfinite(features).all()


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
