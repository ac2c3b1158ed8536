"""Decoded once, kept on disk, found again; broken files named or left out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedscal.core.errors import DataRefused
from fedscal.data.folders import decoded as module
from fedscal.data.folders.decode import SIDE
from fedscal.data.folders.decoded import changes, decoded, refuse_bad
from fedscal.data.folders.tree import File
from fedscal.data.pixels import MappedImages


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))


def pictures(folder: Path, count: int = 3) -> list[File]:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        Image.new("RGB", (20, 10), (number, 10 * number, 0)).save(folder / f"{number}.png")
    return [File(folder / f"{number}.png", None) for number in range(count)]


def test_pixels_are_those_of_the_files_in_order(tmp_path: Path) -> None:
    found = decoded(pictures(tmp_path / "a"))
    assert len(found.images) == 3
    assert found.images[torch.tensor([2, 0])][:, :2, 0, 0].tolist() == [[2, 20], [0, 0]]
    assert [len(batch) for batch in found.images.split(2)] == [2, 1]
    part = found.images.part(torch.tensor([1, 2])).part(torch.tensor([1]))
    assert part[torch.tensor([0])][0, 0, 0, 0].item() == 2


class Told:
    """Writes down what it is told of the progress."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def stage(self, name: str, total: int) -> None:
        self.said.append(f"{name} {total}")

    def advance(self) -> None:
        self.said.append("one")


def test_no_image_is_decoded_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, told = pictures(tmp_path / "a"), Told()
    decoded(files, progress=told, name="a")
    monkeypatch.setattr(module, "decode", lambda path, side: pytest.fail("it was decoded again"))
    again = decoded(files, progress=told, name="a")
    assert told.said == ["decoding a 3", "one", "one", "one"]
    assert len(again.images) == 3


def test_a_changed_file_is_decoded_anew(tmp_path: Path) -> None:
    files = pictures(tmp_path / "a")
    before = decoded(files).hashes
    Image.new("RGB", (5, 5), "white").save(files[1].path)
    os.utime(files[1].path, ns=(1, 1))
    after = decoded(files)
    assert after.hashes[0] == before[0]
    assert after.hashes[1] != before[1]
    assert after.images[torch.tensor([1])].min() == 255


def test_broken_files_are_all_named_or_left_out(tmp_path: Path) -> None:
    files = pictures(tmp_path / "a", 4)
    files[0].path.write_bytes(b"")
    files[2].path.write_text("no image")
    found = decoded(files)
    expected = r"2 of 4 files .*0\.png: empty; .*2\.png: not an image\. .*on_bad=skip"
    with pytest.raises(DataRefused, match=expected):
        refuse_bad(found, skip=False)
    refuse_bad(found, skip=True)
    assert [file.path.name for file in found.files] == ["1.png", "3.png"]
    assert [bad.path.name for bad in found.bad] == ["0.png", "2.png"]
    assert found.images[torch.tensor([1])][0, 0, 0, 0].item() == 3


def test_nothing_but_broken_files_is_refused_even_if_they_may_be_skipped(tmp_path: Path) -> None:
    found = decoded([File(tmp_path / f"{n}.png", None) for n in range(30)])
    assert len(found.images) == 0
    with pytest.raises(DataRefused, match=r"30 of 30 files cannot be used: .* and 10 more"):
        refuse_bad(found, skip=True)


def test_an_interrupted_build_is_done_again(tmp_path: Path) -> None:
    files = pictures(tmp_path / "a")

    class Impatient(Told):
        def advance(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decoded(files, progress=Impatient())
    assert len(decoded(files).images) == 3


def test_a_cache_that_was_cut_is_refused(tmp_path: Path) -> None:
    files = pictures(tmp_path / "a")
    decoded(files)
    (pixels,) = (tmp_path / "cache").rglob("pixels.bin")
    pixels.write_bytes(b"x")
    with pytest.raises(DataRefused, match="is damaged"):
        decoded(files)


def test_mapped_images_are_the_rows_of_the_file(tmp_path: Path) -> None:
    values = np.arange(4 * 3 * 2 * 2, dtype=np.uint8).reshape(4, 3, 2, 2)
    (tmp_path / "x.bin").write_bytes(values.tobytes())
    images = MappedImages.open(tmp_path / "x.bin", (4, 3, 2, 2))
    assert torch.equal(torch.cat(list(images.split(3))), torch.from_numpy(values))
    assert SIDE == 256


_GO_THROUGH = """
import sys
from pathlib import Path
from fedscal.data.pixels import MappedImages
def memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
images, before = MappedImages.open(Path(sys.argv[1]), (4096, 3, 256, 256)), memory()
total = sum(int(batch[:, 0, 0, 0].sum()) for batch in images.split(64))
print(total, memory() - before)
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc to read the peak from")
def test_going_through_images_does_not_fill_the_memory(tmp_path: Path) -> None:
    """Of 805 MB of pixels no more than half may ever be in the process's memory.

    Pages are given back after every 64 MB that were read; how many more the kernel maps around those that
    were asked for is its own affair (200 MB were seen). Without giving back it would be all 805.
    """
    with (tmp_path / "x.bin").open("wb") as file:
        file.truncate(4096 * 3 * 256 * 256)
        file.seek(4095 * 3 * 256 * 256)
        file.write(b"\x07")
    words = [sys.executable, "-c", _GO_THROUGH, str(tmp_path / "x.bin")]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    total, grown = map(int, ended.stdout.split())
    assert total == 7
    assert grown < 400_000, "kB"


def test_changed_new_and_missing_files_are_named(tmp_path: Path) -> None:
    files = pictures(tmp_path / "a", 4)
    before = decoded(files[:3])
    files[0].path.unlink()
    Image.new("RGB", (5, 5), "white").save(files[1].path)
    os.utime(files[2].path, ns=(1, 1))
    after = decoded(files[1:])
    named = [Path(text.split()[0]).name + text[text.index(" ") :] for text in changes(before.key, after)]
    assert named == ["0.png is gone", "1.png was changed", "3.png is new"]
    assert list(changes("no-such-key", after)) == []


def test_images_of_one_even_colour_are_counted(tmp_path: Path) -> None:
    assert decoded(pictures(tmp_path / "a", 3)).even == 3
    noise = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a" / "1.png")
    assert decoded([File(tmp_path / "a" / f"{n}.png", None) for n in range(3)]).even == 2
