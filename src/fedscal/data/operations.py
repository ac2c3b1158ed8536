"""The pool of strong augmentations (FixMatch, Sohn et al. 2020), on batches of float images in [0, 1].

Each operation takes one number u in [0, 1) per image and turns it into its own magnitude. There are
two kinds. *Geometric* operations say where each pixel comes from, as a 3 x 3 matrix from output to
input coordinates, so any number of them cost one resampling. *Photometric* operations change values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from fedscal.core.lazy import F, torch

if TYPE_CHECKING:
    from torch import Tensor


Geometric: TypeAlias = "Callable[[Tensor, float], Tensor]"
"""(u of shape (n,), width / height) -> matrices (n, 3, 3); both image axes run from -1 to 1."""
Photometric: TypeAlias = "Callable[[Tensor, Tensor], Tensor]"
"""(images (n, C, H, W), u of shape (n, 1, 1, 1)) -> images."""

_LARGEST_ANGLE = math.radians(30)
_LARGEST_SHEAR = 0.3
_LARGEST_SHIFT = 0.3
_FEWEST_BITS = 4
_LUMA = (0.299, 0.587, 0.114)


def rotate(u: Tensor, aspect: float) -> Tensor:
    """Turn about the centre by up to 30 degrees either way."""
    angle = _either_way(u, _LARGEST_ANGLE)
    matrices = _identities(u)
    matrices[:, 0, 0] = matrices[:, 1, 1] = angle.cos()
    # Axes from -1 to 1 are not equally long unless the image is square: scale what crosses over.
    matrices[:, 0, 1] = -angle.sin() / aspect
    matrices[:, 1, 0] = angle.sin() * aspect
    return matrices


def shear_x(u: Tensor, aspect: float) -> Tensor:
    """Slide rows along x by up to 0.3 of their distance from the centre."""
    return _with_entry(u, 0, 1, _either_way(u, _LARGEST_SHEAR) / aspect)


def shear_y(u: Tensor, aspect: float) -> Tensor:
    """Slide columns along y by up to 0.3 of their distance from the centre."""
    return _with_entry(u, 1, 0, _either_way(u, _LARGEST_SHEAR) * aspect)


def translate_x(u: Tensor, aspect: float) -> Tensor:
    """Move along x by up to 0.3 of the width."""
    return _with_entry(u, 0, 2, _either_way(u, 2 * _LARGEST_SHIFT))


def translate_y(u: Tensor, aspect: float) -> Tensor:
    """Move along y by up to 0.3 of the height."""
    return _with_entry(u, 1, 2, _either_way(u, 2 * _LARGEST_SHIFT))


def autocontrast(images: Tensor, u: Tensor) -> Tensor:
    """Stretch each channel to the full range; a constant channel stays as it is."""
    darkest = images.amin(dim=(2, 3), keepdim=True)
    span = images.amax(dim=(2, 3), keepdim=True) - darkest
    return torch.where(span > 0, (images - darkest) / span.clamp(min=1e-12), images)


def brightness(images: Tensor, u: Tensor) -> Tensor:
    """Blend with black."""
    return images * _image_share(u)


def color(images: Tensor, u: Tensor) -> Tensor:
    """Blend with the grey image; a grey image stays as it is."""
    return _blend(_grey(images), images, u)


def contrast(images: Tensor, u: Tensor) -> Tensor:
    """Blend with the mean grey."""
    return _blend(_grey(images).mean(dim=(1, 2, 3), keepdim=True), images, u)


def equalize(images: Tensor, u: Tensor) -> Tensor:
    """Spread the values of each channel evenly, by Pillow's rule on 256 levels.

    A level maps to the number of pixels below it in units of ``step`` pixels, where 255 steps hold
    all pixels but the brightest ones. Channels with less than one pixel per step stay as they are.
    """
    levels = _to_bytes(images).long().flatten(2)
    histogram = torch.zeros(*levels.shape[:2], 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(2, levels, torch.ones_like(levels))
    brightest = histogram.gather(2, levels.amax(dim=2, keepdim=True))
    step = (levels.shape[2] - brightest) // 255
    below = histogram.cumsum(dim=2) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255) / 255
    return torch.where(step.unsqueeze(3) > 0, table.gather(2, levels).view_as(images), images)


def identity(images: Tensor, u: Tensor) -> Tensor:
    """Change nothing."""
    return images


def posterize(images: Tensor, u: Tensor) -> Tensor:
    """Keep the 4 to 8 highest bits of each value."""
    bits = _FEWEST_BITS + (u * (9 - _FEWEST_BITS)).floor()
    coarse = torch.exp2(8 - bits)
    return (_to_bytes(images) / coarse).floor() * coarse / 255


def sharpness(images: Tensor, u: Tensor) -> Tensor:
    """Blend with a smoothed image, whose outermost pixels are as before."""
    if min(images.shape[2:]) < 3:
        return images
    smooth = images.clone()
    # Pillow's kernel: the nine pixels around, the middle one five times, over 13.
    smooth[:, :, 1:-1, 1:-1] = (9 * F.avg_pool2d(images, 3, stride=1) + 4 * images[:, :, 1:-1, 1:-1]) / 13
    return _blend(smooth, images, u)


def solarize(images: Tensor, u: Tensor) -> Tensor:
    """Invert the values from a threshold upwards."""
    return torch.where(images < u, images, 1 - images)


GEOMETRIC: dict[str, Geometric] = {
    operation.__name__: operation for operation in (rotate, shear_x, shear_y, translate_x, translate_y)
}
PHOTOMETRIC: dict[str, Photometric] = {
    operation.__name__: operation
    for operation in (
        *(autocontrast, brightness, color, contrast, equalize),
        *(identity, posterize, sharpness, solarize),
    )
}
POOL = (*GEOMETRIC, *PHOTOMETRIC)
"""The names of all operations; a drawn operation is an index into it."""


def displacement(drawn: Tensor, u: Tensor, aspect: float) -> Tensor:
    """Return the matrices (n, 3, 3) of n drawn operations; photometric ones move nothing."""
    matrices = _identities(u)
    for rows, operation in zip(_rows_of_each(drawn)[: len(GEOMETRIC)], GEOMETRIC.values(), strict=True):
        if len(rows):
            matrices[rows] = operation(u[rows], aspect)
    return matrices


def recolour(images: Tensor, drawn: Tensor, u: Tensor) -> None:
    """Apply to each image, in place, the operation it drew; geometric ones change no value."""
    for rows, operation in zip(_rows_of_each(drawn)[len(GEOMETRIC) :], PHOTOMETRIC.values(), strict=True):
        if len(rows):
            images[rows] = operation(images[rows], u[rows].view(-1, 1, 1, 1))


def _rows_of_each(drawn: Tensor) -> tuple[Tensor, ...]:
    """Return, for each operation of the pool, the rows that drew it."""
    counts = drawn.bincount(minlength=len(POOL)).tolist()
    return torch.split(drawn.argsort(), counts)


def _identities(u: Tensor) -> Tensor:
    return torch.eye(3, device=u.device).expand(len(u), 3, 3).clone()


def _with_entry(u: Tensor, row: int, column: int, values: Tensor) -> Tensor:
    matrices = _identities(u)
    matrices[:, row, column] = values
    return matrices


def _either_way(u: Tensor, largest: float) -> Tensor:
    """Map [0, 1) to [-largest, largest)."""
    return (2 * u - 1) * largest


def _image_share(u: Tensor) -> Tensor:
    """Return the image's weight in a blend, from 0.05 to 0.95."""
    return 0.05 + 0.9 * u


def _blend(base: Tensor, images: Tensor, u: Tensor) -> Tensor:
    return base + _image_share(u) * (images - base)


def _grey(images: Tensor) -> Tensor:
    """Return the luma (n, 1, H, W) of colour images; one channel is its own luma."""
    if images.shape[1] == 1:
        return images
    luma = torch.tensor(_LUMA, device=images.device).view(3, 1, 1)
    return (images * luma).sum(dim=1, keepdim=True)


def _to_bytes(images: Tensor) -> Tensor:
    """Return the levels 0 to 255, still as floats; rounding takes back the division by 255."""
    return (images * 255).round()
