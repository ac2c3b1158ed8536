"""Pixels as a picture that people can look at."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

from fedscal.core.lazy import Image

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from torch import Tensor

_COLOURS = 3


def picture(pixels: Tensor) -> Picture:
    """Return uint8 pixels (C, H, W) as a picture: in colours if there are three channels, else in grey."""
    if len(pixels) == _COLOURS:
        return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    return Image.fromarray(pixels.float().mean(dim=0).round().byte().numpy())


def thumbnail(pixels: Tensor, side: int) -> str:
    """Return pixels (C, H, W) as a PNG in base64, made smaller if a side is longer than this."""
    small = picture(pixels)
    small.thumbnail((side, side))
    png = io.BytesIO()
    small.save(png, format="PNG", optimize=True)
    return base64.b64encode(png.getvalue()).decode()
