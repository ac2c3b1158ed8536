"""The user's own backbones, ``package.module:factory``: code, and so only where code is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscal.core.errors import ModelRefused, UsageError, first_line
from fedscal.core.lazy import torch
from fedscal.core.user_code import check_allowed, import_user_module

if TYPE_CHECKING:
    from torch import nn

_FACTORY = re.compile(r"(?!hf:|timm:)\w+(\.\w+)*:[A-Za-z_]\w*")


def is_factory(name: str) -> bool:
    """Whether a model's name is that of a function: ``package.module:factory``."""
    return _FACTORY.fullmatch(name) is not None


def check_permission(name: str) -> None:
    """Refuse a model's name that asks for code, unless code is allowed."""
    if is_factory(name):
        check_allowed(f"model={name}")


def build_backbone(name: str, shape: tuple[int, int, int]) -> nn.Module:
    """Call a factory with the images' (channels, height, width); it returns a module."""
    return call_factory(name, _factory(name), shape)


def call_factory(name: str, factory: Callable[..., Any], shape: tuple[int, int, int]) -> nn.Module:
    """Call a user's factory; report any error in it."""
    try:
        backbone = factory(shape)
    except Exception as error:
        raise ModelRefused(f"model={name} failed: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(backbone, torch.nn.Module):
        raise ModelRefused(f"model={name} returned {type(backbone).__name__}, not a torch.nn.Module.")
    return backbone


def source_file(name: str) -> Path:
    """Return the source file of a factory's module."""
    return Path(str(import_user_module(name.partition(":")[0], f"model={name}").__file__))


def _factory(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    factory = getattr(import_user_module(module, f"model={name}"), function, None)
    if not callable(factory):
        raise UsageError(f"model={name}: {module} has no function '{function}'.")
    return factory  # type: ignore[no-any-return]
