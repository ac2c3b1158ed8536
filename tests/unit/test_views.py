"""Weak and strong views: crops by hand, determinism, shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedscal.data import views as module
from fedscal.data.operations import POOL
from fedscal.data.views import AugmentedViews, crop_matrices, resample

VIEWS = AugmentedViews(mean=(0.5,), std=(0.5,))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=generator(99), dtype=torch.uint8)


def draws(area: float, aspect: float, x: float, y: float, mirror: float) -> Tensor:
    return torch.tensor([area, aspect, x, y, mirror]).view(5, 1)


def test_a_crop_of_a_quarter_by_hand() -> None:
    # Area 1/4 without stretch is half as wide and high; x = 0 is flush left, y = 1 flush bottom.
    (matrix,) = crop_matrices(draws(0, 0.5, 0, 1, 0.4), area=(0.25, 1), aspect=(0.5, 2), flip=False)
    expected = torch.tensor([[0.5, 0, -0.5], [0, 0.5, 0.5], [0, 0, 1]])
    torch.testing.assert_close(matrix, expected)
    (mirrored,) = crop_matrices(draws(0, 0.5, 0, 1, 0.4), area=(0.25, 1), aspect=(0.5, 2), flip=True)
    torch.testing.assert_close(mirrored, expected * torch.tensor([-1, 1, 1]))


def test_a_stretched_crop_keeps_its_area_or_ends_at_the_image() -> None:
    (wide,) = crop_matrices(draws(0, 1, 0.5, 0.5, 0.9), area=(0.25, 1), aspect=(0.25, 4), flip=True)
    torch.testing.assert_close(wide.diagonal()[:2], torch.tensor([1.0, 0.25]))
    (clipped,) = crop_matrices(draws(1, 1, 0.9, 0.5, 0.9), area=(0.25, 1), aspect=(0.25, 4), flip=True)
    torch.testing.assert_close(clipped, torch.diag(torch.tensor([1.0, 0.5, 1.0])))


def test_pixel_centres_that_are_kept_are_those_of_the_matrices_type() -> None:
    for dtype in (torch.float32, torch.float64):
        images, whole = torch.rand(1, 1, 3, 5, dtype=dtype), torch.eye(3, dtype=dtype)[None]
        torch.testing.assert_close(resample(images, whole, "border"), images)


def test_resampling_by_hand() -> None:
    row = torch.tensor([0.0, 10.0, 20.0, 30.0]).view(1, 1, 1, 4)
    assert torch.equal(resample(row, torch.eye(3)[None], beyond="zeros"), row)
    left_half = torch.tensor([[[0.5, 0, -0.5], [0, 1, 0], [0, 0, 1]]])
    # Output centres 0.5, 1.5, 2.5, 3.5 come from 0.25, 0.75, 1.25, 1.75; centres are at 0.5, 1.5, ...
    fetched = resample(row, left_half, beyond="border").flatten()
    assert fetched.tolist() == pytest.approx([0, 2.5, 7.5, 12.5])
    mirror = torch.diag(torch.tensor([-1.0, 1, 1]))[None]
    assert resample(row, mirror, beyond="zeros").flatten().tolist() == pytest.approx([30, 20, 10, 0])


def test_every_image_gets_its_own_matrix() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(2, 1, 1, 2)
    matrices = torch.stack([torch.eye(3), torch.diag(torch.tensor([-1.0, 1, 1]))])
    assert resample(rows, matrices, beyond="zeros").flatten().tolist() == pytest.approx([1, 2, 4, 3])


def test_evaluation_only_normalises() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1)
    shown = AugmentedViews(mean=(0.0, 0.1, 0.5), std=(1.0, 0.1, 0.25)).evaluate(images)
    assert shown.flatten().tolist() == pytest.approx([0, 1, 2])


@pytest.mark.parametrize("shape", [(64, 1, 32, 32), (1, 3, 64, 48), (3, 1, 1, 1), (2, 3, 2, 5), (0, 1, 8, 8)])
def test_shapes_types_and_range(shape: tuple[int, ...]) -> None:
    images = noise(*shape)
    shown = AugmentedViews(mean=(0.0,) * shape[1], std=(1.0,) * shape[1], flip=True)
    for view in (shown.evaluate(images), shown.weak(images, generator()), shown.strong(images, generator())):
        assert view.shape == shape
        assert view.dtype == torch.float32
        assert ((view >= -1e-5) & (view <= 1 + 1e-5)).all()


@pytest.mark.parametrize("level", [0, 128, 255])
def test_constant_images_give_finite_views(level: int) -> None:
    images = torch.full((256, 1, 8, 8), level, dtype=torch.uint8)
    assert torch.isfinite(VIEWS.strong(images, generator())).all()
    # A crop of a constant image is that image: nothing from beyond its edge may seep in.
    torch.testing.assert_close(VIEWS.weak(images, generator()), VIEWS.evaluate(images))


@pytest.mark.parametrize("name", ["weak", "strong"])
def test_a_view_is_a_function_of_images_and_seed(name: str) -> None:
    images, view = noise(16, 1, 16, 16), getattr(VIEWS, name)
    kept = images.clone()
    assert torch.equal(view(images, generator(1)), view(images, generator(1)))
    assert not torch.equal(view(images, generator(1)), view(images, generator(2)))
    assert torch.equal(images, kept)


@pytest.mark.parametrize("name", ["weak", "strong"])
def test_content_does_not_change_how_much_is_drawn(name: str) -> None:
    after = []
    for images in (noise(16, 1, 16, 16), torch.zeros(16, 1, 16, 16, dtype=torch.uint8)):
        stream = generator()
        getattr(VIEWS, name)(images, stream)
        after.append(torch.rand(1, generator=stream).item())
    assert after[0] == after[1]


def test_views_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    VIEWS.weak(noise(4, 1, 8, 8), generator())
    VIEWS.strong(noise(4, 1, 8, 8), generator())
    assert torch.equal(torch.get_rng_state(), before)


def test_flips_are_optional_and_strike_about_half() -> None:
    ramp = torch.arange(0, 256, 8, dtype=torch.uint8).expand(400, 1, 4, 32)
    for flip, low, high in ((False, 0, 0), (True, 160, 240)):
        shown = AugmentedViews((0.5,), (0.5,), flip=flip).weak(ramp, generator())
        mirrored = (shown[:, 0, 0, 0] > shown[:, 0, 0, -1]).sum().item()
        assert low <= mirrored <= high


def test_a_strong_view_composes_in_drawn_order(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = torch.tensor([[POOL.index("solarize")], [POOL.index("brightness")]])
    magnitudes = torch.tensor([[0.5], [0.5]])
    monkeypatch.setattr(torch, "randint", lambda *args, **kwargs: chosen)
    monkeypatch.setattr(
        torch,
        "rand",
        lambda *size, **kwargs: magnitudes if size == ((2, 1),) else torch.full(size, 0.5),
    )
    images = torch.full((1, 1, 4, 4), 204, dtype=torch.uint8)
    whole = AugmentedViews((0.0,), (1.0,), crop_area=(1.0, 1.0), crop_aspect=(1.0, 1.0))
    # 0.8 is above the threshold: inverted to 0.2, then halved. The other order would give 0.4.
    torch.testing.assert_close(whole.strong(images, generator()), torch.full((1, 1, 4, 4), 0.1))


def test_moves_compose_from_the_crop_outwards(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(
        module,
        "resample",
        lambda images, matrices, beyond, side=None: seen.append(matrices) or images,  # type: ignore[func-returns-value]
    )
    moves = torch.rand(2, 1, 3, 3, generator=generator())
    monkeypatch.setattr(module, "displacement", lambda drawn, u, aspect: moves.flatten(0, 1))
    VIEWS.strong(noise(1, 1, 4, 4), generator(3))
    crop = crop_matrices(torch.rand(5, 1, generator=generator(3)), (0.7, 1.0), (0.9, 1.1), flip=False)
    torch.testing.assert_close(seen[0], crop @ moves[0] @ moves[1])


def test_a_strong_view_is_further_from_the_image_than_a_weak_one() -> None:
    images = noise(128, 1, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)
    plain = VIEWS.evaluate(images)
    weak = (VIEWS.weak(images, generator()) - plain).square().mean()
    strong = (VIEWS.strong(images, generator()) - plain).square().mean()
    assert strong > 1.3 * weak > 0


def test_views_may_be_smaller_than_the_images() -> None:
    images = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8)
    views = AugmentedViews(mean=(0.0,), std=(1 / 255,), crop_area=(1.0, 1.0), crop_aspect=(1.0, 1.0), side=4)
    middle = torch.tensor([[18, 19, 20, 21], [26, 27, 28, 29], [34, 35, 36, 37], [42, 43, 44, 45]])
    torch.testing.assert_close(views.evaluate(images)[0, 0], middle.float())
    # The whole image on half the pixels: each lies amid four of the old ones, whose mean it takes.
    weak = views.weak(images, torch.Generator())
    assert weak.shape == (1, 1, 4, 4)
    assert weak[0, 0, 0, 0].item() == pytest.approx((0 + 1 + 8 + 9) / 4)
    assert views.strong(images, torch.Generator()).shape == (1, 1, 4, 4)


def test_beside_a_white_image_lies_white_if_that_is_its_ground() -> None:
    white = torch.full((64, 3, 16, 16), 255, dtype=torch.uint8)
    # Every operation leaves an even image even, unless something else is shifted or turned into it.
    for beyond, even in ((1.0, True), (0.0, False)):
        seen = replace(VIEWS, mean=(0.0,), std=(1.0,), beyond=beyond).strong(white, generator())
        spread = seen.amax(dim=(1, 2, 3)) - seen.amin(dim=(1, 2, 3))
        assert bool((spread < 1e-5).all()) is even
