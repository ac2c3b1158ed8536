"""Near-duplicates: sets copy each other, and one drawing must not count twice in a class of a domain.

The hash has 64 bits: whether each of 8 x 8 patches of the grey image is brighter than the one to its
left. A drawing whose hash differs in few bits from one that is kept is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedscal.core.lazy import F, torch

if TYPE_CHECKING:
    from torch import Tensor


SAME_BITS = 2
"""Two drawings are the same if at most this many bits differ."""
_STEP = 2.0
"""Grey levels below which two patches count as equally bright, so that no bit hangs on rounding."""


def hashes(images: Tensor) -> Tensor:
    """Return the hashes (n, 64) of uint8 images (n, 3, H, W) as booleans."""
    grey = images.double().mean(dim=1, keepdim=True)
    patches = F.adaptive_avg_pool2d(grey, (8, 9)).squeeze(1)
    return (patches[:, :, 1:] - patches[:, :, :-1] > _STEP).flatten(1)


def first_of_each(images: Sequence[Tensor]) -> list[int]:
    """Return the positions of the images that are no near-duplicate of an earlier kept one."""
    kept: list[int] = []
    codes = hashes(torch.stack(list(images))) if images else torch.empty(0, 64)
    for position, code in enumerate(codes):
        if all(int((code ^ codes[other]).sum()) > SAME_BITS for other in kept):
            kept.append(position)
    return kept
