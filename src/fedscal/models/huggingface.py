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
from fedscal.models.registry import HUGGING_FACE
from fedscal.models.store import check_state_dict

_PREPROCESSING = "preprocessor_config.json"
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_NOT_OURS = ("classifier.", "cls_classifier.", "distillation_classifier.", "pooler.")
"""Weights on top of the features: another task's classifier, and the pooling layer that it used."""


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
        state: Tensor = output.last_hidden_state
        pooled: Tensor = state[:, 0] if state.ndim == 3 else state.mean(dim=(2, 3))
        return pooled


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
        return Path(cached_file(repository, _PREPROCESSING) or _PREPROCESSING)
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
    common = {"local_files_only": here, "trust_remote_code": False}
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
        raise ModelRefused(f"model=hf:{repository} cannot be loaded: {first_line(error)}") from error
    strange = [name for name in loaded["unexpected_keys"] if not name.startswith(_NOT_OURS)]
    misshaped = [name for name, *_ in loaded["mismatched_keys"]]
    check_state_dict(f"model=hf:{repository}", loaded["missing_keys"], strange, misshaped)
    return model.float()  # a file may be in half precision; the run chooses its own
