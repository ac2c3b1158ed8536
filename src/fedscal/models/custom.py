"""Backbones of the user's own, ``package.module:factory``: code, and so only where code is allowed.

A model's name can come from a recipe, a run directory or a model's card that somebody else wrote. None of
them can permit what it asks for: permission is given to a process, and to those that it starts.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fedscal.core.errors import ModelRefused, UsageError, first_line
from fedscal.core.lazy import torch

if TYPE_CHECKING:
    from torch import nn

PERMISSION = "FEDSCAL_ALLOW_CODE"
_FACTORY = re.compile(r"(?!hf:|timm:)\w+(\.\w+)*:[A-Za-z_]\w*")


def allow_code() -> None:
    """Let this process, and those that it starts, import the code that a model's name asks for."""
    os.environ[PERMISSION] = "1"


def is_factory(name: str) -> bool:
    """Whether a model's name is that of a function: ``package.module:factory``."""
    return _FACTORY.fullmatch(name) is not None


def check_permission(name: str) -> None:
    """Refuse a name that asks for code, unless code is allowed."""
    if is_factory(name) and os.environ.get(PERMISSION) != "1":
        raise UsageError(
            f"model={name} would run code of that module: if you trust it, add --allow-code "
            "(in Python: fedscal.allow_code())."
        )


def build_own(name: str, shape: tuple[int, int, int]) -> nn.Module:
    """Call a factory with the images' (channels, height, width); it returns a module."""
    check_permission(name)
    factory = _find(name)
    try:
        made = factory(shape)
    except Exception as error:
        raise ModelRefused(f"model={name} failed: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(made, torch.nn.Module):
        raise ModelRefused(f"model={name} returned {type(made).__name__}, not a torch.nn.Module.")
    return made


def source_file(name: str) -> Path:
    """Return the file in which a factory's module is written."""
    check_permission(name)
    return Path(str(_module(name).__file__))


def _module(name: str) -> ModuleType:
    module = name.partition(":")[0]
    if os.getcwd() not in sys.path:  # a file in the working directory is what most people have
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise UsageError(f"model={name}: {module} cannot be imported ({first_line(error)}).") from error


def _find(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    found = getattr(_module(name), function, None)
    if not callable(found):
        raise UsageError(f"model={name}: {module} has no function '{function}'.")
    return found  # type: ignore[no-any-return]
