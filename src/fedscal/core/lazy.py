"""torch, imported when it is first used: ``--help``, a list of options or a usage error need none of it.

Modules between the command line and a checked spec import torch from here; annotations name ``Tensor`` under
``TYPE_CHECKING``. Modules that only training reaches import torch itself.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["F", "safetensors_torch", "torch"]


class _Lazy(ModuleType):
    """A module that is imported when one of its attributes is first asked for."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self.__name__), name)
        setattr(self, name, value)  # the next access does not come here
        return value


if TYPE_CHECKING:
    import safetensors.torch as safetensors_torch
    import torch
    import torch.nn.functional as F
else:
    safetensors_torch = _Lazy("safetensors.torch")
    torch = _Lazy("torch")
    F = _Lazy("torch.nn.functional")
