"""Decode an image file: one rule for every mode; what cannot be decoded is refused, not guessed.

A file is decoded in full: Pillow's ``verify`` passes a photograph that is cut in half.
"""

from __future__ import annotations

import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from fedscal.core.lazy import PIL, Image, np
from fedscal.data.folders import dicom

if TYPE_CHECKING:
    import numpy.typing as npt

SIDE = 256
"""Images are kept as squares of this side, as SHOT's ``Resize((256, 256))`` makes them."""
MOST_PIXELS = 64_000_000
"""A larger image is taken for a decompression bomb: it would take more than 256 MB to decode."""
LONGEST_SIDE = 65_535
"""JPEG's own limit. To shrink a PNG of one column and millions of rows takes far more memory than that."""
_LARGE = 16_000_000
_STRIP = 4_000_000
_DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""The transposition for each EXIF orientation."""
_ORIENTATION = 0x0112
"""The EXIF tag of the orientation."""
Pixels: TypeAlias = "npt.NDArray[np.uint8]"
_one_large = threading.Lock()
# Pillow warns of oddities in files; what cannot be used is refused here.
warnings.filterwarnings("ignore", module=r"PIL\.")


class Unreadable(Exception):
    """Why a file is not an image that can be used."""


def decode(path: Path, side: int = SIDE) -> Pixels:
    """Return the image as RGB, uint8, shape (3, side, side).

    Raises:
        Unreadable: If the file is not a whole image of at most ``MOST_PIXELS`` pixels.
    """
    _check_file(path)
    try:
        with _opened(path) as image:
            return _square(image, side)
    except PIL.UnidentifiedImageError as error:
        raise Unreadable("not an image") from error
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError, Image.DecompressionBombError) as error:
        raise Unreadable(f"cannot be decoded: {error}") from error


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Return the image of a file, decoded in full."""
    if path.suffix.lower() in dicom.SUFFIXES:
        with _in_turn(*dicom.size(path)):
            yield dicom.picture(path)
        return
    with Image.open(path) as image, _in_turn(*image.size):
        image.load()
        yield image


@contextmanager
def _in_turn(width: int, height: int) -> Iterator[None]:
    """Refuse a decompression bomb; decode one large image at a time, whatever the threads."""
    if width * height > MOST_PIXELS or max(width, height) > LONGEST_SIDE:
        raise Unreadable(f"{width} x {height} pixels are too many")
    with _one_large if width * height > _LARGE else nullcontext():
        yield


def _check_file(path: Path) -> None:
    """Refuse a pipe, a folder or an empty file before it is opened: reading may block."""
    try:
        status = path.stat()
    except OSError as error:
        raise Unreadable(error.strerror or "cannot be read") from error
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("not a regular file")
    if status.st_size == 0:
        raise Unreadable("empty")


def _square(image: Image.Image, side: int) -> Pixels:
    """Shrink strip by strip: a large image is never copied whole into another mode.

    Pillow also shrinks the longer side first, so the pixels are those of one ``resize``.
    """
    shown = _deep_shown(image) if image.mode in _DEEP else _on_white
    wide = image.width >= image.height
    shrunk = Image.new("RGB", (side, image.height) if wide else (image.width, side))
    for box in _strips(image):
        strip = shown(image.crop(box))
        size = (side, strip.height) if wide else (strip.width, side)
        shrunk.paste(strip.resize(size, Image.Resampling.BILINEAR), box[:2])
    square = shrunk.resize((side, side), Image.Resampling.BILINEAR)
    turn = _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    upright = square if turn is None else square.transpose(Image.Transpose[turn])
    return np.ascontiguousarray(np.asarray(upright, dtype=np.uint8).transpose(2, 0, 1))


def _strips(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    """Cut an image along its longer side; yield the strips as boxes (left, top, right, bottom)."""
    width, height = image.size
    step = max(1, _STRIP // max(width, height))
    for start in range(0, min(width, height), step):
        end = min(start + step, width, height)
        yield (0, start, width, end) if width >= height else (start, 0, end, height)


def _on_white(image: Image.Image) -> Image.Image:
    """Return any 8-bit mode as RGB; what is transparent shows white."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layered = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered).convert("RGB")
    return image.convert("RGB")


def _deep_shown(image: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """Return how to spread the range that an image of 16 bits, 32 bits or floats has over 0 to 255.

    Pillow's own conversion clips: a 16-bit scan would be white, floats from 0 to 1 black.
    """
    parts = (_numbers(image.crop(box)) for box in _strips(image))
    ends = [(values.min(), values.max()) for values in parts]
    low, high = min(least for least, _ in ends), max(most for _, most in ends)
    if not np.isfinite(ends).all():
        raise Unreadable("holds values that are not numbers")

    def shown(strip: Image.Image) -> Image.Image:
        values = _numbers(strip)
        scaled = (values - low) / (high - low) if high > low else np.zeros_like(values)
        return Image.fromarray(np.round(255 * scaled).astype(np.uint8)).convert("RGB")

    return shown


def _numbers(strip: Image.Image) -> npt.NDArray[np.float64]:
    return np.asarray(strip, dtype=np.float64)
