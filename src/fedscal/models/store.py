"""A model on disk: safetensors, and a JSON card with its hash, its classes in order and its shape."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscal.core import documents, files, weights
from fedscal.core.documents import misfit
from fedscal.core.errors import ModelRefused
from fedscal.core.types import Weights

if TYPE_CHECKING:
    from torch import Tensor

_PREFERRED = ("last", "model", "selected", "source")
_CARD = {
    **dict.fromkeys(("model", "benchmark?", "source?", "method?", "file_sha256", "weights_sha256"), str),
    "classes": [str],
    "shape": [int, int, int],
    "round?": int,
    "notes?": dict,
    "views?": dict,
    "seconds?": float,
    "source_accuracy?": (float, None),
}
_LARGEST_SIDE = 16_384
_MOST_CLASSES = 100_000


def model_files(name: str, model: Weights, card: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the two files of a model, ``name.safetensors`` and ``name.json``."""
    data = weights.to_bytes(model)
    described = {**card, "file_sha256": files.sha256(data), "weights_sha256": weights.digest(model)}
    return {
        f"{name}.safetensors": data,
        f"{name}.json": (json.dumps(described, indent=2, ensure_ascii=False) + "\n").encode(),
    }


def load_model(folder: Path, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Load a model and its card; a file that is not exactly what was written is refused."""
    card = _card(folder / f"{name}.json")
    return read_tensors(folder / f"{name}.safetensors", card.get("file_sha256")), card


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that belongs to a model or checkpoint."""
    try:
        value = documents.read_json(path)
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ModelRefused(f"{path} cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise ModelRefused(f"{path} is not a JSON object")
    return value


def _card(path: Path) -> dict[str, Any]:
    """Read a card; what it says may be little, but must be of the right kind."""
    card = read_json(path)
    wrong = misfit(card, _CARD) or _not_text(card)
    if wrong := wrong or _out_of_range(card["shape"], card["classes"]):
        raise ModelRefused(f"{path} is not a model's card: {wrong}.")
    return card


def _out_of_range(shape: Sequence[int], classes: Sequence[str]) -> str:
    if not all(0 < side <= _LARGEST_SIDE for side in shape):
        return f"shape is not channels, height and width from 1 to {_LARGEST_SIDE:,}"
    if not 0 < len(classes) <= _MOST_CLASSES or len(set(classes)) < len(classes):
        return f"classes are not 1 to {_MOST_CLASSES:,} different names"
    return ""


def _not_text(card: Mapping[str, Any]) -> str:
    try:
        json.dumps(card, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "it holds characters that are no text"
    return ""


def read_tensors(path: Path, expected_sha256: str | None) -> dict[str, Tensor]:
    """Read safetensors whose sha256 must be the expected one."""
    try:
        data = files.read_verified(path, expected_sha256)
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read ({error.strerror})") from error
    if data is None:
        raise ModelRefused(f"{path} is damaged: its sha256 is not the one written beside it.")
    return weights.from_bytes(data, str(path))


def find_model(place: Path) -> Path:
    """Return the safetensors file that a user means by a file, a model folder or a run directory."""
    if place.suffix == ".safetensors":
        return place
    folder = place / "model" if (place / "model").is_dir() else place
    for name in _PREFERRED:
        if (folder / f"{name}.safetensors").exists():
            return folder / f"{name}.safetensors"
    several = sorted(path.name for path in folder.glob("*.safetensors"))
    if several:
        raise ModelRefused(f"{folder} holds several models: name one of {', '.join(several)}.")
    raise ModelRefused(f"{place} holds no model.")


def read_card(place: str) -> dict[str, Any]:
    """Return what is written beside a model."""
    return _card(find_model(Path(place)).with_suffix(".json"))
