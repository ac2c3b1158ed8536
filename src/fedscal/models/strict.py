"""Weights that are not exactly a model's own are refused, never filled up by chance."""

from __future__ import annotations

from collections.abc import Iterable

from fedscal.core.errors import ModelRefused, some

_NAMED = 3


def refuse_differences(
    name: str, missing: Iterable[str], strange: Iterable[str], misshaped: Iterable[str]
) -> None:
    """Name the first tensors that a file lacks, has too many, or has in another shape."""
    found = {"lack": missing, "hold, beyond the model,": strange, "have in another shape": misshaped}
    for trouble, names in found.items():
        if listed := sorted(names):
            raise ModelRefused(f"{name}: its weights {trouble} {some(listed, _NAMED)}.")
