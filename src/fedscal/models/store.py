"""A model on disk: safetensors, and a JSON card with its hash, its classes in order and its shape."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedscal.core import documents, files, weights
from fedscal.core.convert import convert, dump, rest
from fedscal.core.errors import ModelRefused, some
from fedscal.core.types import Weights

if TYPE_CHECKING:
    from torch import Tensor

_PREFERRED = ("last", "model", "selected", "source")
_SHARED = "last-server"
"""The shared model of a run that keeps those of single clients beside it."""
_MOST_MODELS = 8
_LARGEST_SIDE = 16_384
_MOST_CLASSES = 100_000
_MOST_NAMED = 3
_ROUNDING = 1e-3
"""Shares are float32 in training, and add up to 1 as nearly as those do."""


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """The JSON file beside a model.

    Attributes:
        shape: channels, height and width of an image.
        classes: the names of the classes, in the order of the outputs.
        views: how images are shown to it, see ``data.views``; None: as the benchmark says.
        notes: scalars of the server about its clients.
        source_accuracy: on held-out source images, in percent.
        made_from: all that decides the bits of a source model.
        plugins: modules of users that its network comes from.
        statistics_prior: for a model whose sites use statistics of their own, see ``models.statistics``.
        class_shares: for one whose sites estimate their class shares: those of the source model's training.
        site_share: for one whose sites keep some of the source model: at most so much, ``models.steadiness``.
        trunk_sha256: the frozen weights of a backbone, which are not in the file; None: it holds them all.
        thaw: the last blocks of that backbone that were trained; the file holds these.
        others: keys that other programs have added.
    """

    model: str
    shape: tuple[int, int, int]
    classes: tuple[str, ...]
    benchmark: str | None
    source: str | None
    views: Mapping[str, object] | None = None
    method: str | None = None
    round: int | None = None
    notes: Mapping[str, object] | None = None
    source_accuracy: float | None = None
    seconds: float | None = None
    made_from: Mapping[str, object] | None = None
    plugins: str = ""
    statistics_prior: float | None = None
    class_shares: tuple[float, ...] | None = None
    site_share: float | None = None
    trunk_sha256: str | None = None
    thaw: int = 0
    others: Mapping[str, object] = rest()
    file_sha256: str = ""
    weights_sha256: str = ""

    def __post_init__(self) -> None:
        if not all(0 < side <= _LARGEST_SIDE for side in self.shape):
            raise ValueError(f"shape is not channels, height and width from 1 to {_LARGEST_SIDE:,}")
        if not 0 < len(self.classes) <= _MOST_CLASSES or len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes are not 1 to {_MOST_CLASSES:,} different names")
        if self.class_shares is not None and not _are_shares(self.class_shares, len(self.classes)):
            raise ValueError("class_shares are not one share for each class")
        if self.site_share is not None and not 0 <= self.site_share <= 1:
            raise ValueError(f"site_share is {self.site_share:g}, not from 0 to 1")


def _are_shares(values: Sequence[float], classes: int) -> bool:
    return len(values) == classes and min(values) >= 0 and abs(sum(values) - 1) < _ROUNDING


def model_files(name: str, model: Weights, card: ModelCard) -> dict[str, bytes]:
    """Return the two files of a model, ``name.safetensors`` and ``name.json``."""
    data = weights.to_bytes(model)
    card = replace(card, file_sha256=files.sha256(data), weights_sha256=weights.digest(model))
    return {
        f"{name}.safetensors": data,
        f"{name}.json": files.as_json(dump(card)),
    }


def load_model(folder: Path, name: str) -> tuple[dict[str, Tensor], ModelCard]:
    """Load a model and its card; refuse a file whose hash is not the card's."""
    card = _card(folder / f"{name}.json")
    return read_tensors(folder / f"{name}.safetensors", card.file_sha256), card


def read_json(path: Path) -> dict[str, object]:
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


def _card(path: Path) -> ModelCard:
    """Read a card; keys may be missing, but their types must be right."""
    value = read_json(path)
    try:
        json.dumps(value, ensure_ascii=False).encode()
        card = convert(value, ModelCard)
    except UnicodeEncodeError as error:
        raise ModelRefused(f"{path} is not a model's card: it holds characters that are no text.") from error
    except ValueError as error:
        raise ModelRefused(f"{path} is not a model's card: {error}.") from error
    if not (card.file_sha256 and card.weights_sha256):
        raise ModelRefused(f"{path} is not a model's card: it has no file_sha256 or weights_sha256.")
    return card


def read_tensors(path: Path, expected_sha256: str | None) -> dict[str, Tensor]:
    """Read safetensors whose sha256 must be the expected one."""
    try:
        data = files.read_verified(path, expected_sha256)
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read ({error.strerror})") from error
    if data is None:
        raise ModelRefused(f"{path} is damaged: its sha256 is not the one written beside it.")
    return weights.from_bytes(data, str(path))


def find_model(path: Path) -> Path:
    """Return the safetensors file of a path: the file itself, a model folder or a run directory.

    Of a run whose clients or clusters have models of their own one must be named: the source model beside
    them is not what it delivers.
    """
    if path.suffix == ".safetensors":
        return path
    folder = path / "model" if (path / "model").is_dir() else path
    own = [] if (folder / "last.safetensors").exists() else list(folder.glob("last-*.safetensors"))
    for name in (_SHARED,) if own else _PREFERRED:
        if (folder / f"{name}.safetensors").exists():
            return folder / f"{name}.safetensors"
    several = sorted(file.name for file in own or folder.glob("*.safetensors"))
    if several:
        raise ModelRefused(f"{folder} holds several models: name one of {some(several, _MOST_MODELS)}.")
    raise ModelRefused(files.fault(path, "run or model", "holds no model."))


def read_card(path: str) -> ModelCard:
    """Return a model's card."""
    return _card(find_model(Path(path)).with_suffix(".json"))


def check_state_dict(
    name: str, missing: Iterable[str], strange: Iterable[str], misshaped: Iterable[str]
) -> None:
    """Refuse a file whose tensors are not exactly the model's; name the first ones that differ."""
    problems = {"lack": missing, "hold, beyond the model,": strange, "have in another shape": misshaped}
    for problem, names in problems.items():
        if listed := sorted(names):
            raise ModelRefused(f"{name}: its weights {problem} {some(listed, _MOST_NAMED)}.")
