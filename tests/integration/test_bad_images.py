"""Images as they should not be: each is found, named, and refused or left out; none breaks a run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from harness import Words, Zygote, rows, summary
from PIL import Image
from test_odd_data import all_finite, strict

SMALL = [
    "model=convnet",
    "image_size=32",
    "rounds=1",
    "local_epochs=1",
    "batch_size=4",
    "participation=1",
    "workers=1",
]
TRAINED = [*SMALL, "source=drawn", "pretrain_epochs=1", "clients_per_domain=1"]
END = ["--no-report", "--out"]


def draw(path: Path, number: int, ground: int = 60) -> Path:
    """Draw a bright bar on noise; its place is the number's remainder by three."""
    pixels = np.random.default_rng(number).integers(0, ground, (24, 24, 3), dtype=np.uint8)
    pixels[:, 8 * (number % 3) : 8 * (number % 3) + 8] += 120
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two domains of three classes, four images each; no two images are alike."""
    root = tmp_path / "tree"
    for domain, start in {"drawn": 0, "seen": 1000}.items():
        for number in range(12):
            draw(root / domain / "abc"[number % 3] / f"{number}.png", start + number)
    return root


@pytest.fixture(scope="module")
def model(fedscal: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the classes a, b and c."""
    folder = tmp_path_factory.mktemp("model")
    for number in range(24):
        draw(folder / "images" / "drawn" / "abc"[number % 3] / f"{number}.png", number)
    words = [
        f"benchmark={folder / 'images'}",
        "source=drawn",
        "model=convnet",
        "image_size=32",
        "pretrain_epochs=4",
    ]
    ended = fedscal("pretrain", *words, "--out", folder / "model")
    assert ended.code == 0, ended.err
    return folder / "model"


def spoil(folder: Path) -> set[str]:
    """Put a file of every kind that is no whole image into a folder; return their names."""
    whole = draw(folder / "whole.jpg", 7).read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.jpeg").write_text("not a picture")
    (folder / "zip.png").write_bytes(b"PK\x03\x04" + bytes(100))
    (folder / "folder.jpg").mkdir()
    (folder / "gone.jpg").symlink_to(folder / "nowhere")
    (folder / "loop.jpg").symlink_to(folder / "loop.jpg")
    os.mkfifo(folder / "pipe.jpg")
    Image.new("1", (9000, 9000)).save(folder / "bomb.png")
    Image.new("1", (1, 70_000)).save(folder / "needle.png")
    return {path.name for path in folder.iterdir() if path.stem.isalpha()} - {"whole.jpg"}


def test_every_kind_of_broken_file_is_named_by_the_check(fedscal: Zygote, tree: Path) -> None:
    bad = spoil(tree / "seen" / "a")
    assert len(bad) == 10
    found = fedscal("data", "check", tree, "--json")
    assert found.code == 3
    assert "10 of 35 files" in found.error
    told = json.loads(found.out)
    assert {Path(one["path"]).name for one in told["bad"]} == bad
    assert all(one["reason"] for one in told["bad"])
    assert told["counts"]["seen"] == {"a": 5, "b": 4, "c": 4}, "whole.jpg is one more"
    said = fedscal("data", "check", tree, "--on-bad", "skip")
    assert said.code == 0
    assert all(f"{name}: " in said.out for name in bad)


def test_broken_files_stop_a_run_or_are_left_out_and_counted(
    fedscal: Zygote, tree: Path, tmp_path: Path
) -> None:
    bad = spoil(tree / "seen" / "a")
    refused = fedscal("run", f"benchmark={tree}", *TRAINED, *END, tmp_path / "refused")
    assert refused.code == 3
    assert "10 of 23 files cannot be used" in refused.error
    assert all(name in refused.error for name in bad)
    done = fedscal("run", f"benchmark={tree}", *TRAINED, "on_bad=skip", *END, tmp_path / "run")
    assert done.code == 0, done.err
    assert "10 files are no whole image and left out" in " ".join(summary(tmp_path / "run")["warnings"])
    assert rows(tmp_path / "run")[0]["clients"]["seen-0"]["images"] == 13


def test_a_listed_file_that_is_missing_is_named(fedscal: Zygote, tree: Path, tmp_path: Path) -> None:
    for domain in ("drawn", "seen"):
        lines = [
            f"{p.relative_to(tree)} {'abc'.index(p.parent.name)}" for p in (tree / domain).rglob("*.png")
        ]
        (tree / f"{domain}_train.txt").write_text("\n".join(lines))
    (tree / "seen_test.txt").write_text("seen/a/never.png 0\n")
    refused = fedscal("run", f"benchmark={tree}", *TRAINED, *END, tmp_path / "run")
    assert refused.code == 3
    assert "never.png: No such file" in refused.error
    done = fedscal("run", f"benchmark={tree}", *TRAINED, "on_bad=skip", *END, tmp_path / "run")
    assert done.code == 0, done.err


def test_sites_of_no_one_and_few_images_train(fedscal: Zygote, model: Path, tmp_path: Path) -> None:
    sites = tmp_path / "sites"
    (sites / "none").mkdir(parents=True)
    for site, count in {"one": 1, "two": 2, "five": 5}.items():
        for number in range(count):
            draw(sites / site / f"{number}.png", 100 * count + number)
    run = tmp_path / "run"
    ended = fedscal("run", f"source_model={model}", f"clients={sites}", *SMALL, *END, run)
    assert ended.code == 0, ended.err
    assert {name: row["images"] for name, row in rows(run)[1]["clients"].items()} == {
        "one": 1,
        "two": 2,
        "five": 5,
    }
    assert "without an image and left out: none" in summary(run)["warnings"]
    assert all_finite(run)
    assert strict(run)
    assert not rows(run)[1]["failures"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_source_of_too_few_images_is_refused_in_one_sentence(
    fedscal: Zygote, tree: Path, tmp_path: Path, count: int
) -> None:
    shutil.rmtree(tree / "drawn")
    for number in range(count):
        draw(tree / "drawn" / "abc"[number] / "1.png", number)
    for label in "abc"[count:]:
        shutil.rmtree(tree / "seen" / label)
    ended = fedscal("run", f"benchmark={tree}", *TRAINED, *END, tmp_path / "run")
    assert ended.code == 3
    assert f"{count} source image" in ended.error


def test_a_site_may_lack_classes_that_the_model_knows(fedscal: Zygote, model: Path, tmp_path: Path) -> None:
    sites, run = tmp_path / "sites", tmp_path / "run"
    for number in range(0, 12, 3):
        draw(sites / "single" / "a" / f"{number}.png", 300 + number)
    for number in range(12):
        draw(sites / "whole" / "abc"[number % 3] / f"{number}.png", 600 + number)
    ended = fedscal("run", f"source_model={model}", f"clients={sites}", *SMALL, *END, run)
    assert ended.code == 0, ended.err
    assert summary(run)["accuracy"]["last"].keys() == {"single", "whole", "average"}
    assert all_finite(run)


def test_more_classes_than_images_end_in_a_finite_model(fedscal: Zygote, tmp_path: Path) -> None:
    """345 classes of which a client's 60 images can show few: most are never predicted."""
    tree, run = tmp_path / "tree", tmp_path / "run"
    for number in range(345):
        draw(tree / "drawn" / f"class {number:03}" / "1.png", number)
    for number in range(60):
        draw(tree / "seen" / f"{number}.png", 1000 + number)
    ended = fedscal("run", f"benchmark={tree}", *TRAINED, "batch_size=32", *END, run)
    assert ended.code == 0, ended.err
    assert all_finite(run)
    assert strict(run)


def test_a_folder_under_two_names_is_refused_and_a_shared_image_counted(
    fedscal: Zygote, model: Path, tmp_path: Path
) -> None:
    sites, run = tmp_path / "sites", tmp_path / "run"
    for number in range(4):
        draw(sites / "north" / f"{number}.png", number)
        draw(sites / "south" / f"{number}.png", 50 + number)
    (sites / "again").symlink_to(sites / "north")
    words: Words = ["run", f"source_model={model}", f"clients={sites}", *SMALL, *END, run]
    refused = fedscal(*words)
    assert refused.code == 2
    assert "are the same folder" in refused.error
    (sites / "again").unlink()
    for name in ("0.png", "1.png"):
        shutil.copy(sites / "north" / name, sites / "south" / f"copy-{name}")
    ended = fedscal(*words)
    assert ended.code == 0, ended.err
    assert "warning: 2 images are in north and in south alike" in ended.out
    assert "2 images are in north and in south alike" in summary(run)["warnings"]


_DELETE_BEFORE_DECODING = """
import pathlib, fedscal.data.folders.decoded as module
real = module._decode_all
def late(found, side):
    pathlib.Path({path!r}).unlink(missing_ok=True)
    return real(found, side)
module._decode_all = late"""

_CHANGE_BEFORE_TRAINING = """
import pathlib
from fedscal.experiment.local import Local
real = Local.driver
def late(*args):
    pathlib.Path({path!r}).write_bytes(pathlib.Path({other!r}).read_bytes())
    return real(*args)
Local.driver = late"""


def test_an_image_that_vanishes_before_it_is_decoded_is_named_or_skipped(
    fedscal: Zygote, tree: Path, tmp_path: Path
) -> None:
    words = ["run", f"benchmark={tree}", *TRAINED]
    lost = tree / "seen" / "b" / "1.png"
    refused = fedscal(*words, *END, tmp_path / "1", before=_DELETE_BEFORE_DECODING.format(path=str(lost)))
    assert refused.code == 3
    assert "b/1.png: No such file" in refused.error
    lost = tree / "seen" / "b" / "4.png"
    rig = _DELETE_BEFORE_DECODING.format(path=str(lost))
    done = fedscal(*words, "on_bad=skip", *END, tmp_path / "2", before=rig)
    assert done.code == 0, done.err
    assert rows(tmp_path / "2")[0]["clients"]["seen-0"]["images"] == 10


def test_a_run_keeps_the_pixels_that_it_began_with(fedscal: Zygote, tree: Path, tmp_path: Path) -> None:
    words = ["run", f"benchmark={tree}", *TRAINED]
    untouched = fedscal(*words, *END, tmp_path / "untouched")
    assert untouched.code == 0, untouched.err
    paths = {"path": str(tree / "seen/b/1.png"), "other": str(tree / "seen/a/0.png")}
    changed = fedscal(*words, *END, tmp_path / "changed", before=_CHANGE_BEFORE_TRAINING.format(**paths))
    assert changed.code == 0, changed.err
    hashes = [summary(tmp_path / name)["weights_sha256"] for name in ("untouched", "changed")]
    assert hashes[0] == hashes[1]
    resumed = fedscal("run", "--resume", tmp_path / "changed")
    assert resumed.code == 3
    assert "seen/b/1.png was changed" in resumed.error
    (tree / "seen" / "b" / "1.png").unlink()
    resumed = fedscal("run", "--resume", tmp_path / "changed")
    assert resumed.code == 3
    assert "seen/b/1.png is gone" in resumed.error


@pytest.mark.slow
@pytest.mark.long
def test_workers_refuse_other_images_than_the_run_began_with(
    fedscal: Zygote, tree: Path, tmp_path: Path
) -> None:
    paths = {"path": str(tree / "seen/b/1.png"), "other": str(tree / "seen/a/0.png")}
    words = ["run", f"benchmark={tree}", *TRAINED, "workers=2", "clients_per_domain=2"]
    ended = fedscal(*words, *END, tmp_path / "run", before=_CHANGE_BEFORE_TRAINING.format(**paths))
    assert ended.code == 3
    assert "seen/b/1.png was changed" in ended.error


@pytest.mark.parametrize("kind", ["black", "identical"])
def test_images_that_show_nothing_are_warned_of_and_break_nothing(
    fedscal: Zygote, tree: Path, tmp_path: Path, kind: str
) -> None:
    for number, path in enumerate(sorted((tree / "seen").rglob("*.png"))):
        if kind == "black":
            Image.new("RGB", (20 + number, 20)).save(path)
        else:
            draw(path, 5)
    run = tmp_path / "run"
    ended = fedscal("run", f"benchmark={tree}", *TRAINED, *END, run)
    assert ended.code == 0, ended.err
    expected = {
        "black": "12 images of seen are one even colour",
        "identical": "11 images of seen are there more than once",
    }
    assert expected[kind] in summary(run)["warnings"]
    assert all_finite(run)
    assert strict(run)


def test_what_is_no_image_by_name_is_counted(fedscal: Zygote, tree: Path) -> None:
    (tree / "seen" / "a" / ".DS_Store").touch()
    (tree / "seen" / "a" / "Thumbs.db").touch()
    (tree / "seen" / ".thumbnails").mkdir()
    ended = fedscal("data", "check", tree)
    assert ended.code == 0, ended.err
    assert "1 file is passed over" in ended.out
    assert "2 hidden files are passed over" in ended.out
