"""Read a DICOM file as a viewer shows it, by these rules.

Stored values pass the modality transformation (rescale slope and intercept, or its table). A window that the
file names, the first if several, is spread over 0 to 255 and what lies beyond it is cut off; without a window
8-bit values stay as they are, and others are spread as those of every 16-bit scan: from the least to the
greatest value of the image, padding left out. MONOCHROME1, where the least value is white, is inverted;
palettes and YCbCr become RGB. A file with several frames is refused: nobody knows which is meant.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fedscal.core.errors import first_line
from fedscal.core.extras import from_extra
from fedscal.core.lazy import Image, np

if TYPE_CHECKING:
    import numpy.typing as npt
    from pydicom.dataset import Dataset

    Values: TypeAlias = npt.NDArray[Any]

SUFFIXES = (".dcm", ".dicom")
_PURPOSE = "a DICOM file"
_NARROW = 1e-9
_DEFLATED = "1.2.840.10008.1.2.1.99"
_DEFERRED = "1 MB"
"""Larger elements than this stay in the file until they are asked for."""
warnings.filterwarnings("ignore", module="pydicom")  # odd values; what cannot be used is refused


def size(path: Path) -> tuple[int, int]:
    """Return width and height by the file's head.

    Raises:
        ValueError: If it is not a DICOM file with one image.
    """
    head = _head(path)
    return int(head.Columns), int(head.Rows)


def picture(path: Path) -> Image.Image:
    """Return the image of a file, grey or RGB, of 8 bits.

    Raises:
        ValueError: If it cannot be decoded.
    """
    with from_extra("dicom", _PURPOSE):
        from pydicom.pixels.processing import apply_color_lut
        from pydicom.pixels.utils import pixel_array
    head = _head(path)
    with _explained(head):
        stored = pixel_array(path)
        if head.PhotometricInterpretation == "PALETTE COLOR":
            stored = apply_color_lut(stored, head)
        # Colours have no window.
        return Image.fromarray(_grey(stored, head) if stored.ndim == 2 else _as_bytes(stored))


def _head(path: Path) -> Dataset:
    """Read all but the pixels; refuse what holds no image, or several."""
    with from_extra("dicom", _PURPOSE):
        from pydicom import dcmread
        from pydicom.filereader import read_file_meta_info
    with _explained():
        if read_file_meta_info(path).get("TransferSyntaxUID") == _DEFLATED:
            raise ValueError("it is deflated, and might unpack to anything: dcmconv of DCMTK mends it")
        head = dcmread(path, defer_size=_DEFERRED, stop_before_pixels=True)
        frames = int(head.get("NumberOfFrames") or 1)
        if not head.get("Rows") or not head.get("Columns"):
            raise ValueError("it is DICOM without an image")
    if frames > 1:
        raise ValueError(f"it has {frames} frames: save the one that is meant as a file of its own")
    return head


@contextmanager
def _explained(head: Dataset | None = None) -> Iterator[None]:
    """Turn whatever pydicom raises at a broken or packed file into one sentence."""
    with from_extra("dicom", _PURPOSE):
        from pydicom.errors import InvalidDicomError
    try:
        yield
    except ValueError:
        raise
    except InvalidDicomError as error:
        raise ValueError("it does not begin as DICOM does") from error
    except Exception as error:
        syntax = head.file_meta.get("TransferSyntaxUID") if head else None
        if syntax is not None and syntax.is_compressed:
            advice = "gdcmconv --raw of GDCM unpacks it"
            raise ValueError(f"it is packed as {syntax.name}, which is not read here: {advice}") from error
        raise ValueError(f"{first_line(error)} ({type(error).__name__})") from error


def _grey(stored: Values, head: Dataset) -> npt.NDArray[np.uint8]:
    """Return 8-bit values of the stored ones of one channel."""
    with from_extra("dicom", _PURPOSE):
        from pydicom.pixels.processing import apply_modality_lut, apply_voi
    values, window = apply_modality_lut(stored, head), _window(head)
    if window:
        grey = _eight_bits(_through(values, *window, head.get("VOILUTFunction") or "LINEAR"))
    elif "VOILUTSequence" in head:
        grey = _spread(apply_voi(values, head))
    elif head.BitsStored == 8:
        grey = _as_bytes(values)
    else:
        grey = _spread(values, values[stored != head.get("PixelPaddingValue")])
    return 255 - grey if head.PhotometricInterpretation == "MONOCHROME1" else grey


def _window(head: Dataset) -> tuple[float, float] | None:
    """Return center and width of the first window, if there is one."""
    both = [np.ravel(head.get(name)) for name in ("WindowCenter", "WindowWidth")]
    if any(not len(values) or values[0] in (None, "") for values in both):
        return None
    return float(both[0][0]), float(both[1][0])


def _through(values: Values, center: float, width: float, kind: str) -> Values:
    """Return where values lie in a window, from 0 to 1, as PS3.3 C.11.2.1.2 says."""
    if kind == "SIGMOID":
        return 1 / (1 + np.exp(-4 * (values - center) / max(width, _NARROW)))
    if kind == "LINEAR_EXACT":
        return (values - center) / max(width, _NARROW) + 0.5
    return (values - (center - 0.5)) / max(width - 1, _NARROW) + 0.5


def _as_bytes(values: Values) -> npt.NDArray[np.uint8]:
    """Return bytes as they are, and spread all else."""
    return values if values.dtype == np.uint8 else _spread(values)


def _spread(values: Values, known: Values | None = None) -> npt.NDArray[np.uint8]:
    """Spread the range of the values, or of those that are known, over 0 to 255."""
    known = values if known is None or not known.size else known
    low, high = float(known.min()), float(known.max())
    numbers = np.asarray(values, dtype=np.float64)
    return _eight_bits((numbers - low) / (high - low) if high > low else np.zeros_like(numbers))


def _eight_bits(scaled: Values) -> npt.NDArray[np.uint8]:
    """Return 0 to 255 for 0 to 1."""
    if not np.isfinite(scaled).all():
        raise ValueError("it holds values that are not numbers")
    return np.round(255 * np.clip(scaled, 0, 1)).astype(np.uint8)
