"""Each augmentation on numbers worked out by hand, or against Pillow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from fedscal.data import operations as ops
from fedscal.data.views import resample

FIXMATCH = {
    "autocontrast", "brightness", "color", "contrast", "equalize", "identity", "posterize",
    "rotate", "sharpness", "shear_x", "shear_y", "solarize", "translate_x", "translate_y",
}  # fmt: skip


def random_bytes(channels: int, seed: int = 0) -> Tensor:
    """Three images of 20 x 14 whose values crowd at the dark end, so that levels repeat."""
    drawn = torch.rand(3, channels, 20, 14, generator=torch.Generator().manual_seed(seed))
    return (drawn**3 * 200 + 20).to(torch.uint8)


def as_pil(image: Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def oracle(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    changed = [np.array(change(as_pil(image))).reshape(20, 14, -1) for image in images]
    return torch.from_numpy(np.stack(changed)).permute(0, 3, 1, 2).float()


def column(*values: float) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1, 1)


def keeping(factor: float) -> Tensor:
    """The u that makes a blend keep this factor of the image, for three images."""
    return column(*[(factor - 0.05) / 0.9] * 3)


def test_the_pool_is_that_of_fixmatch() -> None:
    assert set(ops.POOL) == FIXMATCH
    assert len(ops.POOL) == len(FIXMATCH)


HALF = column(0.5, 0.5, 0.5)
AGAINST_PILLOW = {
    "autocontrast": (HALF, ImageOps.autocontrast),
    "brightness": (keeping(0.3), lambda image: ImageEnhance.Brightness(image).enhance(0.3)),
    "color": (keeping(0.3), lambda image: ImageEnhance.Color(image).enhance(0.3)),
    "contrast": (keeping(0.6), lambda image: ImageEnhance.Contrast(image).enhance(0.6)),
    "equalize": (HALF, ImageOps.equalize),
    "identity": (HALF, lambda image: image),
    "posterize": (column(0.3, 0.3, 0.3), lambda image: ImageOps.posterize(image, 5)),
    "sharpness": (keeping(0.2), lambda image: ImageEnhance.Sharpness(image).enhance(0.2)),
    "solarize": (HALF, lambda image: ImageOps.solarize(image, 128)),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", ops.PHOTOMETRIC)
def test_photometric_operations_agree_with_pillow(name: str, channels: int) -> None:
    images = random_bytes(channels)
    u, change = AGAINST_PILLOW[name]
    ours = ops.PHOTOMETRIC[name](images / 255, u) * 255
    # Pillow rounds its intermediate results to bytes, at most twice; table look-ups must be exact.
    exact = name in {"equalize", "identity", "posterize", "solarize"}
    torch.testing.assert_close(ours, oracle(images, change), atol=1e-3 if exact else 1.6, rtol=0)


def test_magnitudes_differ_from_image_to_image() -> None:
    images = torch.full((2, 1, 1, 1), 200 / 255)
    assert (ops.brightness(images, column(0, 1)) * 255).flatten().tolist() == pytest.approx([10, 190])
    assert ops.solarize(images, column(0.2, 0.9)).flatten().tolist() == pytest.approx([55 / 255, 200 / 255])


def test_posterize_spans_four_to_eight_bits() -> None:
    u = column(0, 0.2, 0.4, 0.6, 0.99)
    levels = ops.posterize(torch.full((5, 1, 1, 1), 175 / 255), u) * 255
    # 175 = 10101111 in binary: the lowest 4, 3, 2, 1 and 0 bits are cleared.
    assert levels.flatten().tolist() == pytest.approx([160, 168, 172, 174, 175])
    between = ops.posterize(torch.full((1, 1, 1, 1), 175.6 / 255), column(0.99)) * 255
    assert between.item() == pytest.approx(176)  # the nearest level, not the one below


def test_autocontrast_stretches_each_channel_by_itself() -> None:
    image = torch.tensor([[[[0.2, 0.4, 0.6]], [[0.5, 0.5, 0.5]]]])
    expected = torch.tensor([[[[0.0, 0.5, 1.0]], [[0.5, 0.5, 0.5]]]])
    torch.testing.assert_close(ops.autocontrast(image, column(0.5)), expected)


def test_equalize_by_hand() -> None:
    # 509 pixels of level 0, 256 of level 10, 3 of level 20: step = 765 // 255 = 3, half a step is 1.
    levels = torch.tensor([0] * 509 + [10] * 256 + [20] * 3)
    spread = ops.equalize(levels.view(1, 1, 24, 32) / 255, column(0.5)) * 255
    # 0 -> (0 + 1) // 3, 10 -> (509 + 1) // 3, 20 -> (765 + 1) // 3
    assert torch.unique(spread).tolist() == pytest.approx([0, 170, 255])


def test_sharpness_leaves_the_rim_and_images_too_small_to_smooth() -> None:
    image = torch.rand(1, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    blurred = ops.sharpness(image, column(0))
    rim = torch.ones(5, 5, dtype=torch.bool)
    rim[1:-1, 1:-1] = False
    assert torch.equal(blurred[..., rim], image[..., rim])
    assert not torch.equal(blurred, image)
    smoothed = np.array(as_pil((image[0] * 255).byte()).filter(ImageFilter.SMOOTH))[2, 2] / 255
    assert blurred[0, 0, 2, 2].item() == pytest.approx(
        0.95 * smoothed + 0.05 * image[0, 0, 2, 2].item(), abs=0.01
    )
    assert torch.equal(ops.sharpness(image[:, :, :2], column(0)), image[:, :, :2])


@pytest.mark.parametrize("name", ops.PHOTOMETRIC)
@pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
def test_constant_images_stay_finite_and_in_range(name: str, level: float) -> None:
    changed = ops.PHOTOMETRIC[name](torch.full((2, 3, 4, 4), level), column(0, 0.99))
    assert changed.shape == (2, 3, 4, 4)
    assert ((changed >= 0) & (changed <= 1 + 1e-6)).all()


def test_the_ends_of_the_geometric_ranges() -> None:
    ends = torch.tensor([0.0, 1.0])
    assert ops.translate_x(ends, 1.0)[:, 0, 2].tolist() == pytest.approx([-0.6, 0.6])  # of a width of 2
    assert ops.translate_y(ends, 2.0)[:, 1, 2].tolist() == pytest.approx([-0.6, 0.6])
    assert ops.shear_x(ends, 1.0)[:, 0, 1].tolist() == pytest.approx([-0.3, 0.3])
    assert ops.shear_y(ends, 2.0)[:, 1, 0].tolist() == pytest.approx([-0.6, 0.6])
    assert ops.rotate(ends, 1.0)[:, 1, 0].tolist() == pytest.approx([-0.5, 0.5])  # sin 30 degrees


@pytest.mark.parametrize("name", ops.GEOMETRIC)
def test_geometric_operations_do_nothing_in_the_middle_of_their_range(name: str) -> None:
    torch.testing.assert_close(ops.GEOMETRIC[name](torch.tensor([0.5]), 1.7)[0], torch.eye(3))


@pytest.mark.parametrize(("point", "angle"), [((0.5, 0.0), 30), ((0.0, 1.0), 120)])
def test_rotation_keeps_lengths_on_an_oblong_image(point: tuple[float, float], angle: float) -> None:
    # On 20 x 10 pixels, both points lie 5 px from the centre: to the right and below.
    x, y, _ = (ops.rotate(torch.tensor([1.0]), 2.0)[0] @ torch.tensor([*point, 1.0])).tolist()
    assert np.hypot(x * 10, y * 5) == pytest.approx(5)
    assert np.degrees(np.arctan2(y * 5, x * 10)) == pytest.approx(angle)


def test_a_translation_moves_pixels() -> None:
    image = torch.arange(20.0).view(1, 1, 1, 20)
    matrices = ops.translate_x(torch.tensor([1.0]), 20.0)  # from 0.3 * 20 = 6 pixels to the right
    moved = resample(image, matrices, beyond="zeros").flatten()
    torch.testing.assert_close(moved, torch.tensor([*range(6, 20), *[0] * 6]).float(), atol=1e-4, rtol=0)


def test_drawn_operations_reach_their_images_only() -> None:
    names = ["rotate", "solarize", "translate_x", "identity", "brightness"]
    drawn = torch.tensor([ops.POOL.index(name) for name in names])
    u = torch.tensor([1.0, 0.0, 1.0, 0.7, 0.0])
    moved = (ops.displacement(drawn, u, 1.0) != torch.eye(3)).flatten(1).any(dim=1)
    assert moved.tolist() == [True, False, True, False, False]
    images = torch.full((5, 1, 2, 2), 0.8)
    ops.recolour(images, drawn, u)
    assert images[:, 0, 0, 0].tolist() == pytest.approx([0.8, 0.2, 0.8, 0.8, 0.04])
