"""What the cache is rid of: what files made that are gone, old versions, what nobody used for long."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedscal.cli.data import clean
from fedscal.core import files
from fedscal.data.cache import entry_name
from fedscal.data.clean import entries, remove
from fedscal.data.digits import DIGITS
from fedscal.data.features import FeatureBank
from fedscal.data.folders.benchmark import folder_benchmark
from fedscal.data.tensors import keep_tensors, tensors_benchmark
from fedscal.data.views import AugmentedViews

LONG = 100 * 86_400


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two sites, decoded."""
    for site in ("a", "b"):
        folder = tmp_path / "photos" / site
        folder.mkdir(parents=True)
        Image.new("RGB", (9, 9), (200, 10, 10)).save(folder / "1.png")
    decode(tmp_path / "photos")
    return tmp_path / "photos"


def decode(folder: Path) -> None:
    data = folder_benchmark(str(folder), side=32)
    assert data.folder
    data.folder.prepare()


def left_over(days: float = 90) -> dict[str, str]:
    """Return why entries will not be used again, by what they are."""
    return {entry.what: entry.why for entry in entries(days) if entry.why}


def test_what_is_in_use_stays(photos: Path) -> None:
    assert left_over() == {}
    assert len(entries(90)) == 2


def test_images_of_changed_or_removed_files_go_and_others_stay(photos: Path, cache: Path) -> None:
    os.utime(photos / "a" / "1.png", (1, 1))
    (photos / "b" / "1.png").unlink()
    why = "its files are gone or changed"
    assert left_over() == {f"decoded images of {photos / site}": why for site in ("a", "b")}
    Image.new("RGB", (9, 9)).save(photos / "b" / "1.png")
    decode(photos)
    assert len(entries(90)) == 4
    remove(entry for entry in entries(90) if entry.why)
    assert left_over() == {}
    assert len(list((cache / "images").iterdir())) == 4, "two entries and their locks"


def test_an_index_that_cannot_be_read_is_left_over(photos: Path, cache: Path) -> None:
    next((cache / "images").glob("[0-9a-f]*/index.json")).write_text("{")
    assert list(left_over().values()) == ["its files are gone or changed"]


def test_features_go_with_the_images_that_they_are_of(photos: Path) -> None:
    data = folder_benchmark(str(photos), side=32)
    assert data.folder
    views = AugmentedViews((0,) * 3, (1,) * 3)
    bank = FeatureBank(lambda images: images.flatten(1)[:, :2], (2,), views, 1, "x", "y")
    bank.features(data.folder.images("a"), data.folder.keys()["a"], "a")
    assert left_over() == {}
    os.utime(photos / "a" / "1.png", (1, 1))
    assert left_over()["features of a"] == "its images are gone or changed"


def test_what_was_not_used_for_long_goes_unless_it_is_used_again() -> None:
    name = keep_tensors({"a": torch.zeros(2, 1, 4, 4, dtype=torch.uint8)})
    [entry] = entries(90)
    then = time.time() - LONG
    os.utime(entry.path, (then, then))
    assert left_over() == {f"tensors of a program, {name}": "not used for 100 days"}
    assert left_over(days=101) == {}
    tensors_benchmark(name)
    assert left_over() == {}


def test_an_older_version_of_a_data_set_goes(cache: Path) -> None:
    for name in (entry_name(DIGITS), "digits-v0", "somebodys-v0"):
        files.write_dir(cache / "data" / name, {"manifest.json": b"{}"})
    assert left_over() == {"data set digits-v0": "of an older version"}


def test_a_link_is_not_followed(cache: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (cache / "images").mkdir(parents=True)
    (cache / "images" / "abc").symlink_to(mine)
    assert entries(0) == []


def test_a_model_of_ones_own_keeps_its_time(tmp_path: Path) -> None:
    os.utime(tmp_path, (5, 5))
    files.mark_used(tmp_path)
    assert tmp_path.stat().st_mtime == 5


def test_nothing_goes_without_a_yes(
    photos: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean()
    assert "all of it in use" in capsys.readouterr().out
    os.utime(photos / "a" / "1.png", (1, 1))
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115  # no terminal: nobody to ask
    clean()
    assert "--yes removes them" in capsys.readouterr().out
    clean(as_json=True)
    [found] = json.loads(capsys.readouterr().out)
    assert Path(found["path"]).is_dir()
    clean(yes=True)
    assert "removed: " in capsys.readouterr().out
    assert not Path(found["path"]).exists()
    assert len(entries(90)) == 1
