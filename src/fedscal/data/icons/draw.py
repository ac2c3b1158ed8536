"""Draw pixels: icons rasterised by resvg, sketches enlarged, all with the same size and margin.

An image is 64 x 64, RGB on white. The ink's bounding box, and not the set's own canvas, is centred and
scaled to leave a margin of 4 pixels: a set's own margin says nothing about the object.
"""

from __future__ import annotations

import gzip
import io
import json
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from PIL import Image

from fedscal.core.extras import from_extra
from fedscal.core.lazy import F, torch

if TYPE_CHECKING:
    from torch import Tensor

SIDE = 64
_MARGIN = 4
_PROBE = 128
"""Pixels of the drawing from which the ink's bounding box is taken."""
_LEAST_ALPHA = 8
_SKETCH_SIDE = 28
_LEAST_INK = 0.1
_Square = tuple[float, float, float]
"""Left, top and side of a square of the plane."""


def check_tools() -> None:
    """Refuse before the download if resvg is not installed."""
    _resvg()


def _resvg() -> ModuleType:
    """Import resvg late: only making the archive needs it."""
    with from_extra("icons", "drawing the icons"):
        import resvg_py
    return resvg_py


class Box(TypedDict, total=False):
    """The canvas of a set of icons, or of an icon where that differs."""

    left: float
    top: float
    width: float
    height: float


class Drawing(Box):
    """An entry of ``icons.json``."""

    body: str


def icon(drawing: Drawing, canvas: Box) -> Tensor | None:
    """Return the pixels (3, 64, 64) of an icon of a set with this canvas, or None if it draws nothing."""
    left = float(drawing.get("left", canvas.get("left", 0)))
    top = float(drawing.get("top", canvas.get("top", 0)))
    width = float(drawing.get("width", canvas.get("width", 16)))
    height = float(drawing.get("height", canvas.get("height", 16)))
    body = str(drawing["body"]).replace("currentColor", "#000")
    # The inner picture keeps the set's own canvas, which clips what is outside of it.
    inner = (
        f'<svg x="{left}" y="{top}" width="{width}" height="{height}" '
        f'viewBox="{left} {top} {width} {height}">{body}</svg>'
    )
    square = _square_around_ink(inner, (left, top, max(width, height)))
    if square is None:
        return None
    pixels = torch.from_numpy(_raster(inner, square, SIDE, "white")[..., :3].copy())
    return pixels.permute(2, 0, 1).contiguous()


def _square_around_ink(inner: str, canvas: _Square) -> _Square | None:
    """Return the square in which the ink is centred and has its margin; None if there is no ink."""
    left, top, extent = canvas
    alpha = _raster(inner, canvas, _PROBE, None)[..., 3]
    rows, columns = np.nonzero(alpha >= _LEAST_ALPHA)
    if not len(rows):
        return None
    unit = extent / _PROBE
    x, y = left + unit * int(columns.min()), top + unit * int(rows.min())
    wide, high = unit * (int(np.ptp(columns)) + 1), unit * (int(np.ptp(rows)) + 1)
    side = max(wide, high) * SIDE / (SIDE - 2 * _MARGIN)
    return x + (wide - side) / 2, y + (high - side) / 2, side


def _raster(inner: str, square: _Square, side: int, background: str | None) -> Any:
    """Draw a square of the plane; return its pixels (side, side, 4)."""
    x, y, extent = square
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{x} {y} {extent} {extent}" width="{side}" height="{side}">{inner}</svg>'
    )
    png = _resvg().svg_to_bytes(svg_string=svg, background=background, skip_system_fonts=True)
    return np.array(Image.open(io.BytesIO(png)).convert("RGBA"))


def sketches(data: bytes) -> list[Tensor]:
    """Return the drawings (3, 64, 64) of one Quick Draw category, black on white."""
    lines = gzip.decompress(data).splitlines()
    rows = [json.loads(line)[: _SKETCH_SIDE**2] for line in lines if line.strip()]
    drawings = [torch.tensor(row, dtype=torch.float64).view(_SKETCH_SIDE, _SKETCH_SIDE) for row in rows]
    return [_enlarged(drawing) for drawing in drawings if bool((drawing > _LEAST_INK).any())]


def _enlarged(ink: Tensor) -> Tensor:
    """Scale the ink's bounding box to the inner square of a white canvas."""
    rows, columns = (ink > _LEAST_INK).nonzero(as_tuple=True)
    box = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    inner = SIDE - 2 * _MARGIN
    height, width = (max(1, round(inner * length / max(box.shape))) for length in box.shape)
    smooth = F.interpolate(box[None, None], size=(height, width), mode="bicubic", align_corners=False)[0, 0]
    canvas = torch.zeros(SIDE, SIDE, dtype=torch.float64)
    top, left = (SIDE - height) // 2, (SIDE - width) // 2
    canvas[top : top + height, left : left + width] = smooth.clamp(0, 1)
    return (255 * (1 - canvas)).round().to(torch.uint8).expand(3, SIDE, SIDE).contiguous()
