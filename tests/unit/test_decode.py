"""Decoding: real files of every mode and every kind of damage."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from fedscal.core.errors import DataRefused
from fedscal.data.folders import decode as module
from fedscal.data.folders.decode import Pixels, Unreadable, decode
from fedscal.data.folders.scan import scan

_NOBODY = 65534


def photo(size: tuple[int, int] = (40, 30)) -> Image.Image:
    """Return noise: it compresses badly, so that a cut file is cut in the middle of its pixels."""
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(noise)


def saved(image: Image.Image, path: Path, **how: object) -> Path:
    image.save(path, **how)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_of_a_png_becomes_rgb(tmp_path: Path, mode: str) -> None:
    assert_shown(decode(saved(photo().convert(mode), tmp_path / "x.png"), side=16))


@pytest.mark.parametrize("mode", ["CMYK", "YCbCr", "LAB", "I", "F"])
def test_every_mode_of_a_tiff_becomes_rgb(tmp_path: Path, mode: str) -> None:
    image = photo() if mode not in ("I", "F") else photo().convert("L")
    assert_shown(decode(saved(image.convert(mode), tmp_path / "x.tif"), side=16))


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow does not read AVIF")
def test_avif_is_read_where_pillow_does(tmp_path: Path) -> None:
    folder = tmp_path / "sites" / "a"
    folder.mkdir(parents=True)
    saved(photo(), folder / "x.avif", quality=95)
    [file] = scan(tmp_path / "sites").domains["a"]
    assert_shown(decode(file.path, side=16))


def assert_shown(pixels: Pixels) -> None:
    assert pixels.shape == (3, 16, 16)
    assert pixels.dtype == np.uint8
    assert pixels.std() > 10, "neither black nor white"


def test_sixteen_bits_are_spread_and_not_clipped(tmp_path: Path) -> None:
    # 1000, 1500 and 2000 of 65535 would all be white if clipped at 255; spread they are 0, 127.5 and 255.
    values = np.repeat(np.array([[1000, 1500, 2000]], dtype=np.uint16), 3, axis=0)
    found = decode(saved(Image.fromarray(values), tmp_path / "x.png"), side=3)
    assert found[0, 0].tolist() == [0, 128, 255]


def test_floats_between_0_and_1_are_not_black(tmp_path: Path) -> None:
    values = np.linspace(0, 1, 4, dtype=np.float32)[None].repeat(4, axis=0)
    assert decode(saved(Image.fromarray(values), tmp_path / "x.tif"), side=4)[1, 0].tolist() == [
        0,
        85,
        170,
        255,
    ]


def test_floats_that_are_not_numbers_are_refused(tmp_path: Path) -> None:
    values = np.full((4, 4), np.nan, dtype=np.float32)
    with pytest.raises(Unreadable, match="not numbers"):
        decode(saved(Image.fromarray(values), tmp_path / "x.tif"))


def test_the_camera_s_orientation_is_followed(tmp_path: Path) -> None:
    # Left half red, right half blue; orientation 6 says: turn a quarter clockwise, so red comes to the top.
    image = Image.new("RGB", (8, 8), "blue")
    image.paste("red", (0, 0, 4, 8))
    exif = Image.Exif()
    exif[0x0112] = 6
    found = decode(saved(image, tmp_path / "x.png", exif=exif), side=8)
    assert found[:, 0, 4].tolist() == [255, 0, 0]
    assert found[:, 7, 4].tolist() == [0, 0, 255]


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    found = decode(saved(Image.new("RGBA", (4, 4), (0, 0, 0, 0)), tmp_path / "x.png"), side=2)
    assert found.min() == 255


def test_of_an_animation_the_first_image_counts(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    path = saved(frames[0], tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert decode(path, side=2)[:, 0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (3000, 10)])
def test_odd_shapes_become_squares(tmp_path: Path, size: tuple[int, int]) -> None:
    assert decode(saved(photo(size), tmp_path / "x.png"), side=8).shape == (3, 8, 8)


@pytest.mark.parametrize("size", [(40, 30), (16, 50), (50, 16), (7, 301)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "CMYK"])
def test_strips_give_the_pixels_of_one_resize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], mode: str
) -> None:
    monkeypatch.setattr(module, "_STRIP", 3 * max(size))
    image = photo(size).convert(mode)
    found = decode(saved(image, tmp_path / "x.tif"), side=16)
    whole = image.convert("RGB").resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(found, np.asarray(whole).transpose(2, 0, 1))


def test_strips_of_sixteen_bits_share_one_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STRIP", 1)
    values = np.repeat(np.array([[0], [1000], [4000]], dtype=np.uint16), 3, axis=1)
    found = decode(saved(Image.fromarray(values), tmp_path / "x.png"), side=3)
    assert found[0, :, 0].tolist() == [0, 64, 255]


def test_a_palette_s_transparent_colour_is_white(tmp_path: Path) -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 200, 0, 0])
    image.paste(0, (0, 0, 2, 4))
    found = decode(saved(image, tmp_path / "x.png", transparency=0), side=4)
    assert found[:, 0, 0].tolist() == [255, 255, 255]
    assert found[:, 0, 3].tolist() == [200, 0, 0]


@pytest.mark.parametrize(
    ("orientation", "corner"), list(zip(range(1, 9), [0, 1, 3, 2, 0, 1, 3, 2], strict=True))
)
def test_every_orientation_turns_the_marked_corner_where_it_belongs(
    tmp_path: Path, orientation: int, corner: int
) -> None:
    """The first pixel is red. EXIF says where the first row and the first column belong: 6 is right and top.

    The corners are counted in reading order: 0 and 1 above, 2 and 3 below.
    """
    image = Image.new("RGB", (8, 8), "blue")
    image.paste("red", (0, 0, 4, 4))
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode(saved(image, tmp_path / "x.png", exif=exif), side=8)
    red = [found[0, row, column] == 255 for row in (0, 7) for column in (0, 7)]
    assert red.index(True) == corner


def damaged(folder: Path) -> dict[str, Path]:
    """Return a file of every kind that is no image."""
    whole = saved(photo((200, 200)), folder / "whole.jpg").read_bytes()
    paths = {name: folder / f"{name}.jpg" for name in ("cut", "empty", "text", "folder", "gone", "pipe")}
    paths["cut"].write_bytes(whole[: len(whole) // 2])
    paths["empty"].write_bytes(b"")
    paths["text"].write_text("not a picture")
    paths["folder"].mkdir()
    paths["gone"].symlink_to(folder / "nowhere")
    os.mkfifo(paths["pipe"])
    return paths


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut", "cannot be decoded"),
        ("empty", "empty"),
        ("text", "not an image"),
        ("folder", "not a regular file"),
        ("gone", "No such file"),
        ("pipe", "not a regular file"),
    ],
)
def test_what_is_no_image_is_named(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        decode(damaged(tmp_path)[name])


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(Image.new("1", (9000, 9000)), tmp_path / "bomb.png")
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(Unreadable, match="9000 x 9000 pixels are too many"):
        decode(path)
    assert path.stat().st_size < 100_000
    assert module.MOST_PIXELS < 9000 * 9000


def test_a_needle_is_refused_before_it_is_widened(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="1 x 70000 pixels are too many"):
        decode(saved(Image.new("1", (1, 70_000)), tmp_path / "needle.png"))
    assert decode(saved(Image.new("1", (10, 30_000)), tmp_path / "thread.png"), side=8).shape == (3, 8, 8)


_PEAK = """
import sys
from pathlib import Path
from fedscal.data.folders.decode import decode
def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
before = memory("VmHWM")
decode(Path(sys.argv[1]))
print(memory("VmHWM") - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read the peak from")
def test_the_largest_image_that_is_taken_needs_less_than_500_mb(tmp_path: Path) -> None:
    path = saved(Image.new("RGBA", (8000, 8000)), tmp_path / "x.png", compress_level=1)
    assert module.MOST_PIXELS == 8000 * 8000
    ended = subprocess.run([sys.executable, "-c", _PEAK, path], capture_output=True, text=True, check=True)
    assert 250_000 < int(ended.stdout) < 500_000, "kB: the image itself, and little more"


@pytest.fixture
def nobody() -> Iterator[Path]:
    """A folder that is read as a user without privileges, whoever runs the tests."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        if os.geteuid() == _NOBODY:
            os.seteuid(0)


def test_files_and_folders_that_may_not_be_read_are_named(nobody: Path) -> None:
    secret = saved(photo(), nobody / "secret.png")
    secret.chmod(0)
    (nobody / "site" / "locked").mkdir(parents=True)
    (nobody / "site" / "locked").chmod(0)
    if os.geteuid() == 0:
        os.seteuid(_NOBODY)
    with pytest.raises(Unreadable, match="Permission denied"):
        decode(secret)
    with pytest.raises(DataRefused, match=r"locked cannot be read: Permission denied\."):
        scan(nobody)
