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
from fedscal.models.strict import refuse_differences

PREFIX = "hf:"
_PREPROCESSING = "preprocessor_config.json"
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_NOT_OURS = ("classifier.", "cls_classifier.", "distillation_classifier.", "pooler.")
"""Weights on top of the features: another task's classifier, and the pooling layer that it used."""


@dataclass(frozen=True)
class _Preprocessing:
    """What we read of a model's word on its images."""

    image_mean: tuple[float, ...]
    image_std: tuple[float, ...]


class HuggingFaceBackbone(nn.Module):
    """A vision model without its classifier.

    The feature of a transformer is its class token after the last layer's norm, that of a convolutional
    network its pooled map. A pooling layer on top of the class token is left out: image classifiers do not
    use it, and most files do not hold one.
    """

    def __init__(self, place: str) -> None:
        super().__init__()
        self.layers = _load(place)

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, d) features; a grey image counts as equal channels."""
        found = self.layers(pixel_values=images.expand(-1, self.layers.config.num_channels, -1, -1))
        state: Tensor = found.last_hidden_state
        pooled: Tensor = state[:, 0] if state.ndim == 3 else state.mean(dim=(2, 3))
        return pooled


def normalisation(place: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and deviation that a model was trained with; ImageNet's if it does not say."""
    path = Path(place) / _PREPROCESSING if Path(place).is_dir() else _fetched(place)
    try:
        known = read_record(path, _Preprocessing)
    except (OSError, ValueError):
        return _IMAGENET
    return known.image_mean, known.image_std


@cache
def _fetched(repository: str) -> Path:
    """Return where a repository's word on images is kept; asked for once, not at every use."""
    with from_extra("hf", f"model={PREFIX}{repository}"):
        from transformers.utils.hub import cached_file
    try:
        return Path(cached_file(repository, _PREPROCESSING) or _PREPROCESSING)
    except OSError:  # loading the model says what is wrong
        return Path(repository) / _PREPROCESSING


def _load(place: str) -> Any:
    with from_extra("hf", f"model={PREFIX}{place}"):
        from transformers import AutoConfig, AutoModel
        from transformers.utils import logging
    # What it has to say of the weights is said by us, and a bar of its own would cross ours.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    here = Path(place).is_dir()
    common = {"local_files_only": here, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(place, **common)
        extra = {"add_pooling_layer": False} if config.model_type in ("vit", "deit") else {}
        model, found = AutoModel.from_pretrained(
            place,
            config=config,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # to be named below
            output_loading_info=True,
            **common,
            **extra,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelRefused(f"model=hf:{place} cannot be loaded: {first_line(error)}") from error
    strange = [name for name in found["unexpected_keys"] if not name.startswith(_NOT_OURS)]
    misshaped = [name for name, *_ in found["mismatched_keys"]]
    refuse_differences(f"model=hf:{place}", found["missing_keys"], strange, misshaped)
    return model.float()  # a file may hold halves; precision is the run's to choose
