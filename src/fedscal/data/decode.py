"""From an image file to pixels: every mode has a written rule; what cannot be shown is named, not guessed.

A file is decoded in full: Pillow's ``verify`` passes a photograph that is cut in half.
"""

from __future__ import annotations

import stat
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

SIDE = 256
"""Images are kept as squares of this side, as SHOT's ``Resize((256, 256))`` makes them."""
MOST_PIXELS = 64_000_000
"""A larger image is taken for a decompression bomb: it would take more than 200 MB to decode."""
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
Pixels = npt.NDArray[np.uint8]


class Unreadable(Exception):
    """Why a file is not an image that can be used."""


def decode(path: Path, side: int = SIDE) -> Pixels:
    """Return the image as RGB, uint8, shape (3, side, side).

    Raises:
        Unreadable: If the file is not a whole image of at most ``MOST_PIXELS`` pixels.
    """
    _check_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's bomb warning: our own limit is lower
            with Image.open(path) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise Unreadable(f"{image.width} x {image.height} pixels are too many")
                image.load()
                return _square(image, side)
    except UnidentifiedImageError as error:
        raise Unreadable("not an image") from error
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError, Image.DecompressionBombError) as error:
        raise Unreadable(f"cannot be decoded: {error}") from error


def _check_file(path: Path) -> None:
    """Refuse what would block or surprise before it is opened: a pipe, a folder, nothing."""
    try:
        found = path.stat()
    except OSError as error:
        raise Unreadable(error.strerror or "cannot be read") from error
    if not stat.S_ISREG(found.st_mode):
        raise Unreadable("not a regular file")
    if found.st_size == 0:
        raise Unreadable("empty")


def _square(image: Image.Image, side: int) -> Pixels:
    upright = ImageOps.exif_transpose(image)
    plain = _from_deep(upright) if upright.mode in _DEEP else _on_white(upright)
    shown = plain.resize((side, side), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(shown, dtype=np.uint8).transpose(2, 0, 1))


def _on_white(image: Image.Image) -> Image.Image:
    """Return any 8-bit mode as RGB; what is transparent shows white."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layered = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return image.convert("RGB")


def _from_deep(image: Image.Image) -> Image.Image:
    """Spread the range that an image of 16 bits, 32 bits or floats has over 0 to 255.

    Pillow's own conversion clips: a 16-bit scan would be white, floats from 0 to 1 black.
    """
    values = np.asarray(image, dtype=np.float64)
    if not np.isfinite(values).all():
        raise Unreadable("holds values that are not numbers")
    low, high = values.min(), values.max()
    scaled = (values - low) / (high - low) if high > low else np.zeros_like(values)
    return Image.fromarray(np.round(255 * scaled).astype(np.uint8)).convert("RGB")
