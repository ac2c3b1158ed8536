"""Large packages, imported when they are first used: a list of options or a usage error needs none of them.

Modules between the command line and a checked spec import torch and others from here; annotations name
``Tensor`` under ``TYPE_CHECKING``. Modules that only training reaches import them directly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["PIL", "F", "Image", "ImageDraw", "ImageFont", "features", "np", "safetensors_torch", "torch"]


class _Lazy:
    """A module that is imported when one of its attributes is first asked for."""

    __slots__ = ("__dict__", "_name")

    def __init__(self, module: str) -> None:
        self._name = module

    def __getattr__(self, name: str) -> Any:
        module = import_module(self._name)  # waits for another thread that is importing it
        # What the module has is found there from now on, without a call of this function.
        self.__dict__ = module.__dict__
        return getattr(module, name)


if TYPE_CHECKING:
    import numpy as np
    import PIL
    import safetensors.torch as safetensors_torch
    import torch
    import torch.nn.functional as F
    from PIL import Image, ImageDraw, ImageFont, features
else:
    F = _Lazy("torch.nn.functional")
    Image = _Lazy("PIL.Image")
    ImageDraw = _Lazy("PIL.ImageDraw")
    ImageFont = _Lazy("PIL.ImageFont")
    PIL = _Lazy("PIL")
    features = _Lazy("PIL.features")
    np = _Lazy("numpy")
    safetensors_torch = _Lazy("safetensors.torch")
    torch = _Lazy("torch")
