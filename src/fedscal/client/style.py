"""The style of a client's images: the profile by which LADD clusters clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedscal.core.lazy import torch
from fedscal.core.types import Images

if TYPE_CHECKING:
    from torch import Tensor

_WINDOW = 3


def style(images: Images) -> dict[str, Tensor]:
    r"""Return the mean over images of |FFT(x)| in the 3 x 3 lowest frequencies of each channel.

    Args:
        images: uint8 images (n, C, H, W); values count as 0 to 1.

    Returns:
        ``amplitude`` of shape (C, 3, 3). It shows the mean brightness and the coarsest patterns of the
        client's images, nothing finer and no single image.
    """
    amplitudes = [_low_amplitudes(batch / 255).sum(dim=0) for batch in images.split(256)]
    return {"amplitude": torch.stack(amplitudes).sum(dim=0) / len(images)}


def _low_amplitudes(images: Tensor) -> Tensor:
    spectrum: Tensor = torch.fft.fftshift(torch.fft.fft2(images, norm="forward"), dim=(2, 3)).abs()
    top, left = (size // 2 - _WINDOW // 2 for size in images.shape[2:])
    return spectrum[:, :, top : top + _WINDOW, left : left + _WINDOW]
