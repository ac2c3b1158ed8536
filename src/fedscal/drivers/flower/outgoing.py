"""What may leave a site: a list of names and kinds, held against every answer before it is sent.

Numbers about the training, the model's own tensors, and what the method reveals by its table row.
No text but the site's name and hashes, no other tensor, no path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedscal.drivers.wire import REPORT
from fedscal.errors import FedscalError
from fedscal.types import Groups, Weights


class NotAllowed(FedscalError):
    """Something that is not on the list was about to leave the site."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_number, value.values()))


def _epochs(value: Any) -> bool:
    return isinstance(value, list) and all(map(_numbers, value))


def _word(value: Any) -> bool:
    """A name, a hash or a version: nothing with room for a path or a sentence about data."""
    return isinstance(value, str) and len(value) <= 64 and all(c.isalnum() or c in "-_.+" for c in value)


def _sentence(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 300 and "/" not in value and "\\" not in value


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(map(_word, value))


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "client": _word,
    "domain": _word,
    "version": _word,
    "classes_sha256": _word,
    "model_sha256": _word,
    "images": _number,
    "refused": _sentence,
    "round": _number,
    "examples": _number,
    "epochs": _epochs,
    "seconds": _number,
    "drift": _number,
    "metrics": _numbers,
    "models": _words,
    "transport": _word,
}
PROFILE = "profile"


def check(header: Mapping[str, Any], models: Groups, others: Groups, source: Weights) -> None:
    """Raise if an answer holds anything that is not on the list."""
    for name, value in header.items():
        if name not in _FIELDS or not _FIELDS[name](value):
            raise NotAllowed(f"'{name}' may not leave the site as it is")
    for model in models.values():
        for name, tensor in model.items():
            if name not in source or tensor.shape != source[name].shape:
                raise NotAllowed(f"the tensor '{name}' is none of the model's and may not leave the site")
    for name in others:
        if name != PROFILE and not name.startswith(REPORT):
            raise NotAllowed(f"the tensors '{name}' may not leave the site")
