"""Backbones by transformers, ``hf:<folder or repository>``: the paper's ViT-S/16, DeiT, DINOv2, ConvNeXt."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedscal.core.documents import read_record
from fedscal.core.errors import ModelRefused, first_line
from fedscal.core.extras import from_extra
from fedscal.models import hub
from fedscal.models.registry import HUGGING_FACE
from fedscal.models.store import check_state_dict

_PREPROCESSING = "preprocessor_config.json"
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_NOT_OURS = ("classifier.", "cls_classifier.", "distillation_classifier.", "pooler.")
"""Weights on top of the features: another task's classifier, and the pooling layer that it used."""
_LAYERS = ("layers", "encoder.layer", "encoder.layers", "encoder.stages")
"""Where the families keep what follows the embedding."""


@dataclass(frozen=True)
class _Preprocessing:
    """The keys of a preprocessor configuration that are used here."""

    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]


class HuggingFaceBackbone(nn.Module):
    """A vision model without its classifier.

    The feature of a transformer is its class token after the last layer's norm, that of a convolutional
    network its pooled map. A pooling layer on top of the class token is left out: image classifiers do not
    use it, and most files do not hold one.
    """

    def __init__(self, repository: str) -> None:
        super().__init__()
        self.layers = _load(repository)

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, d) features; a grey image counts as equal channels."""
        output = self.layers(pixel_values=images.expand(-1, self.layers.config.num_channels, -1, -1))
        return _pooled(output.last_hidden_state)

    def take_apart(self) -> list[nn.Module]:
        """Return the embedding, and the layers or stages, the last of them with norm and pooling."""
        layers = next((found for path in _LAYERS if (found := _at(self.layers, path))), None)
        if not isinstance(layers, nn.ModuleList):
            return []
        blocks = list(layers)
        end = _End(getattr(self.layers, "layernorm", nn.Identity()))
        # What is left of the model is its embedding: no layers, and no norm after them.
        del layers[:]
        self.layers.layernorm = nn.Identity()
        return [_Embedding(self.layers), *blocks[:-1], nn.Sequential(blocks[-1], end)]


class _Embedding(nn.Module):
    """A model whose layers were taken out."""

    def __init__(self, hollow: Any) -> None:
        super().__init__()
        self.layers = hollow

    def forward(self, images: Tensor) -> Tensor:
        output = self.layers(pixel_values=images.expand(-1, self.layers.config.num_channels, -1, -1))
        state: Tensor = output.last_hidden_state
        return state


class _End(nn.Module):
    """What follows the layers: a transformer's norm, which a convolutional network has after its features."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, state: Tensor) -> Tensor:
        return _pooled(self.norm(state) if state.ndim == 3 else state)


def _pooled(state: Tensor) -> Tensor:
    return state[:, 0] if state.ndim == 3 else state.mean(dim=(2, 3))


def _at(module: nn.Module, path: str) -> nn.Module | None:
    """Return the submodule at a path, if there is one."""
    return dict(module.named_modules()).get(path)


def normalisation(repository: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and deviation that a model was trained with; ImageNet's by default."""
    path = Path(repository) / _PREPROCESSING if Path(repository).is_dir() else _fetched(repository)
    try:
        values = read_record(path, _Preprocessing)
    except (OSError, ValueError):
        return _IMAGENET
    return values.image_mean, values.image_std


@cache
def _fetched(repository: str) -> Path:
    """Return the cached preprocessor configuration of a repository, asked for once."""
    with from_extra("hf", f"model={HUGGING_FACE}{repository}"):
        from transformers.utils.hub import cached_file
    try:
        found = cached_file(repository, _PREPROCESSING, local_files_only=not hub.reachable())
        return Path(found or _PREPROCESSING)
    except OSError:  # loading the model says what is wrong
        return Path(repository) / _PREPROCESSING


def _load(repository: str) -> Any:
    with from_extra("hf", f"model={HUGGING_FACE}{repository}"):
        from transformers import AutoConfig, AutoModel
        from transformers.utils import logging
    # Differences in the weights are reported below, and its progress bar would break ours.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    here = Path(repository).is_dir()
    alone = here or not hub.reachable()
    common = {"local_files_only": alone, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(repository, **common)
        extra = {"add_pooling_layer": False} if config.model_type in ("vit", "deit") else {}
        model, loaded = AutoModel.from_pretrained(
            repository,
            config=config,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are reported below
            output_loading_info=True,
            **common,
            **extra,
        )
    except (OSError, ValueError, RuntimeError) as error:
        away = alone and not here and isinstance(error, OSError)
        reason = f"{hub.WAY_OUT}: model=hf:<folder>" if away else first_line(error)
        raise ModelRefused(f"model=hf:{repository} cannot be loaded: {reason}") from error
    strange = [name for name in loaded["unexpected_keys"] if not name.startswith(_NOT_OURS)]
    misshaped = [name for name, *_ in loaded["mismatched_keys"]]
    check_state_dict(f"model=hf:{repository}", loaded["missing_keys"], strange, misshaped)
    return model.float()  # a file may be in half precision; the run chooses its own
