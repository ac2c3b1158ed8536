"""The style of a client's images: LADD clusters clients by it, and trains the source model in it.

It is the low-frequency amplitude of Yang, Soatto: FDA: Fourier Domain Adaptation for Semantic Segmentation.
CVPR 2020.
"""

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
    amplitudes = [_low(_spectrum(batch)).abs().sum(dim=0) for batch in images.split(256)]
    return {"amplitude": torch.stack(amplitudes).sum(dim=0) / len(images)}


def restyled(images: Tensor, amplitudes: Tensor) -> Tensor:
    """Return images in other styles: their lowest frequencies keep the phase and take these amplitudes.

    Args:
        images: uint8 images (n, C, H, W).
        amplitudes: a style (n, C, 3, 3) for each of them.
    """
    spectrum = _spectrum(images)
    low = _low(spectrum)
    low.copy_(torch.polar(amplitudes.to(low.real), low.angle()))
    changed: Tensor = torch.fft.ifft2(torch.fft.ifftshift(spectrum, dim=(2, 3)), norm="forward").real
    return (255 * changed).round().clamp(0, 255).to(torch.uint8)


def _spectrum(images: Tensor) -> Tensor:
    """Return the Fourier transform of images with values from 0 to 1, frequency 0 in the middle."""
    spectrum: Tensor = torch.fft.fftshift(torch.fft.fft2(images / 255, norm="forward"), dim=(2, 3))
    return spectrum


def _low(spectrum: Tensor) -> Tensor:
    """Return a view of the lowest frequencies."""
    top, left = (size // 2 - _WINDOW // 2 for size in spectrum.shape[2:])
    return spectrum[:, :, top : top + _WINDOW, left : left + _WINDOW]
