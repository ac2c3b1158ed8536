"""Weak and strong views of a batch of images: one resampling per batch, no loop over images.

A weak view is a random resized crop, mirrored half of the time if asked. A strong view is another
such crop and then two operations from the FixMatch pool. All geometric operations are composed into
one matrix per image and resampled once, before the operations that change values. So a rotated or
shifted crop shows the pixels beside it, and a constant colour only outside the image.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from fedscal.core.convert import convert
from fedscal.core.errors import ModelRefused, shown
from fedscal.core.lazy import F, torch
from fedscal.data.operations import POOL, displacement, recolour

if TYPE_CHECKING:
    from torch import Tensor

_CROP_DRAWS = 5
_STRONG_OPERATIONS = 2
_LEAST_DEVIATION = 1e-3
"""Added to an image's own deviation, so that a constant image becomes zeros rather than noise."""
_Range = tuple[float, float]


@dataclass(frozen=True)
class AugmentedViews:
    """Views for images of one or three channels and any size.

    How many numbers a view draws depends on the number of images alone, never on their content.

    Attributes:
        mean: What is subtracted from each channel, of values in [0, 1]; None: each image's own mean.
        std: What each channel is then divided by; None: each image's own deviation.
        crop_area: The least and the greatest share of the image that a crop keeps.
        crop_aspect: The least and the greatest stretch of its width against its height.
        flip: Whether to mirror half of the crops left to right.
        side: The side of the views, square. For evaluation, the middle of a larger image, and the whole of a
            smaller one, enlarged. None: the image's.
        beyond: The value outside the image in a strong view, in [0, 1]: its background. None: the nearest
            pixel's.
        whole: For evaluation, the whole image, whatever its size.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    crop_area: _Range = (0.7, 1.0)
    crop_aspect: _Range = (0.9, 1.1)
    flip: bool = False
    side: int | None = None
    beyond: float | None = 0.0
    whole: bool = False

    def shown_whole(self) -> AugmentedViews:
        """Return views of images whose subject fills them: all of it, in crops most of it."""
        return replace(self, crop_area=(0.6, 1.0), crop_aspect=(0.8, 1.25), beyond=None, whole=True)

    def evaluate(self, images: Tensor) -> Tensor:
        """Return the images as they are, or a square of them, normalised."""
        if self.side is None:
            return self._normalise(_unit(images))
        return self._normalise(_square(images, self.side, self.whole))

    def weak(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random crop of each image, enlarged to its size."""
        crops = self._crops(images, generator)
        # "border", since a crop may touch the image's edge, where "zeros" would blend in black.
        return self._normalise(resample(_unit(images), crops, "border", self.side))

    def strong(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random crop of each image, changed by two operations drawn from the pool."""
        matrices = self._crops(images, generator)
        size = (_STRONG_OPERATIONS, len(images))
        drawn = torch.randint(len(POOL), size, generator=generator).to(images.device)
        u = torch.rand(size, generator=generator).to(images.device)
        aspect = images.shape[3] / images.shape[2]
        for moves in displacement(drawn.flatten(), u.flatten(), aspect).view(*size, 3, 3):
            matrices = matrices @ moves
        changed = self._moved(_unit(images), matrices)
        for operation, amount in zip(drawn, u, strict=True):
            recolour(changed, operation, amount)
        return self._normalise(changed)

    def _moved(self, images: Tensor, matrices: Tensor) -> Tensor:
        if self.beyond is None:
            return resample(images, matrices, "border", self.side)
        return resample(images - self.beyond, matrices, "zeros", self.side) + self.beyond

    def _crops(self, images: Tensor, generator: torch.Generator) -> Tensor:
        draws = torch.rand(_CROP_DRAWS, len(images), generator=generator).to(images.device)
        return crop_matrices(draws, self.crop_area, self.crop_aspect, self.flip)

    def _normalise(self, images: Tensor) -> Tensor:
        """Normalise in place: a view is a copy already, and a second costs as much as the resampling."""
        axes = (1, 2, 3)
        images -= images.mean(axes, keepdim=True) if self.mean is None else _channels(self.mean, images)
        if self.std is not None:
            return images.div_(_channels(self.std, images))
        return images.div_(images.square().mean(axes, keepdim=True).sqrt() + _LEAST_DEVIATION)


def views_of(described: Mapping[str, object] | None, channels: int) -> AugmentedViews | None:
    """Return the views that a model's card describes; None if it leaves them to its benchmark."""
    if described is None:
        return None
    strange = sorted(set(described) - {field.name for field in fields(AugmentedViews)})
    try:
        if strange:
            raise ValueError(f"{shown(strange[0])} is unknown")
        views = convert(described, AugmentedViews)
        if not _usable(views, channels):
            raise ValueError("numbers out of range")
    except ValueError as error:
        raise ModelRefused(f"the model's card describes no usable views: {error}.") from error
    return views


def _usable(views: AugmentedViews, channels: int) -> bool:
    """Whether numbers from a card are in the ranges that the views can work with."""
    crops = (views.crop_area, views.crop_aspect)
    shifts = (0.0,) if views.mean is None else views.mean
    scales = (1.0,) if views.std is None else views.std
    return (
        all(0 < low <= high < math.inf for low, high in crops)
        and {len(shifts), len(scales)} <= {1, channels}
        and all(map(math.isfinite, (*shifts, *scales, views.beyond or 0.0)))
        and min(scales) > 0
        and (views.side is None or views.side > 0)
    )


def crop_matrices(draws: Tensor, area: _Range, aspect: _Range, flip: bool) -> Tensor:
    """Turn five uniform draws per image (5, n) into the matrices (n, 3, 3) of random crops.

    With area share a (uniform) and stretch r (uniform in its logarithm), a crop is sqrt(a r) of the
    image wide and sqrt(a / r) high, neither more than 1, and lies anywhere inside the image. A
    matrix takes output to input coordinates, both from -1 to 1.
    """
    share = area[0] + (area[1] - area[0]) * draws[0]
    low, high = math.log(aspect[0]), math.log(aspect[1])
    stretch = (low + (high - low) * draws[1]).exp()
    size = torch.stack([share * stretch, share / stretch], dim=1).sqrt_().clamp_(max=1)  # (n, 2)
    matrices = torch.eye(3, device=draws.device).repeat(draws.shape[1], 1, 1)
    matrices[:, :2, 2] = (1 - size) * (2 * draws[2:4].T - 1)
    if flip:
        size[:, 0] = torch.where(draws[4] < 0.5, -size[:, 0], size[:, 0])
    matrices.diagonal(dim1=1, dim2=2)[:, :2] = size
    return matrices


def resample(images: Tensor, matrices: Tensor, beyond: str, side: int | None = None) -> Tensor:
    """Fetch every output pixel from where its image's matrix says, between pixels bilinearly.

    Args:
        images: Float images (n, C, H, W).
        matrices: From output to input coordinates (n, 3, 3), both axes from -1 to 1.
        beyond: What lies outside the image: "zeros" for black, "border" for its nearest pixel.
        side: Height and width of the result; None: those of the images.
    """
    count, _, height, width = images.shape
    height, width = (height, width) if side is None else (side, side)
    # One product for the batch; affine_grid makes one per image, which takes ten times as long.
    centres = _pixel_centres(height, width, matrices.device, matrices.dtype)
    where = matrices[:, :2].reshape(2 * count, 3) @ centres
    grid = where.view(count, 2, height, width).permute(0, 2, 3, 1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=beyond, align_corners=False)


@functools.lru_cache(maxsize=4)
def _pixel_centres(height: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return x, y and 1 of every pixel's centre, as columns (3, H * W); they are the same for every batch."""
    x = (2 * torch.arange(width, device=device, dtype=dtype) + 1) / width - 1
    y = (2 * torch.arange(height, device=device, dtype=dtype) + 1) / height - 1
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    return torch.stack([columns, rows, torch.ones_like(rows)]).view(3, -1)


def _square(images: Tensor, side: int, whole: bool) -> Tensor:
    """Return the middle of the images; of smaller ones all, enlarged; all of any if ``whole``."""
    if whole or min(images.shape[2:]) < side:
        return F.interpolate(_unit(images), (side, side), mode="bilinear", align_corners=False)
    top, left = ((length - side) // 2 for length in images.shape[2:])
    return _unit(images[:, :, top : top + side, left : left + side])


def _channels(values: tuple[float, ...], images: Tensor) -> Tensor:
    return torch.tensor(values, device=images.device).view(-1, 1, 1)


def _unit(images: Tensor) -> Tensor:
    return images.to(torch.get_default_dtype(), copy=True).div_(255)
