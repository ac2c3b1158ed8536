"""What a folder's images advise, and the recipe that says so."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from fedscal.cli import app, jobs
from fedscal.data.folders.benchmark import PHOTOGRAPHS
from fedscal.data.folders.look import mirror_changes, typical_side
from fedscal.data.folders.scan import scan
from fedscal.data.views import AugmentedViews
from fedscal.experiment import spec as spec_module
from fedscal.experiment.advice import advice
from fedscal.experiment.experiment import load_data
from fedscal.experiment.first_recipe import first_recipe
from fedscal.experiment.spec import RunSpec

OBJECTS = ("bird", "feather")


def draw(root: Path, sizes: dict[str, tuple[int, int]], classes: tuple[str, ...] = OBJECTS) -> Path:
    for domain, size in sizes.items():
        for label in classes:
            folder = root / domain / label
            folder.mkdir(parents=True)
            Image.new("RGB", size).save(folder / "1.png")
    return root


@pytest.fixture(params=[True, False], ids=["pretrained", "none installed"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(spec_module, "pretrained_is_installed", lambda: request.param)
    return bool(request.param)


def advised(root: Path, **keys: Any) -> dict[str, object]:
    spec = RunSpec.make(benchmark=str(root), source="a", **keys)
    return {one.key: one.value for one in advice(scan(root), spec)}


def test_the_typical_side_is_the_median_of_the_shorter_sides(tmp_path: Path) -> None:
    root = draw(tmp_path, {"a": (30, 90), "b": (70, 50), "c": (400, 300)})
    assert typical_side(scan(root)) == 50
    for path in root.rglob("*.png"):
        path.write_bytes(b"no image")
    assert typical_side(scan(root)) == 0
    assert advised(root, model="convnet") == {}


@pytest.mark.parametrize(
    ("keys", "side", "expected"),
    [
        ({"method": "fedscal"}, 64, 64),
        ({"method": "fedscal"}, 61, 64),
        ({"method": "fedscal"}, 20, 32),
        ({"method": "fedscal"}, 500, 224),
        ({"method": "fedscal", "image_size": 48}, 500, 48),
        ({"model": "efficientnet-lite0"}, 28, 96),
        ({"model": "efficientnet-lite0", "trunk": "frozen", "image_size": 160}, 28, 160),
    ],
)
def test_views_are_no_larger_than_images(
    keys: dict[str, Any], side: int, expected: int, tmp_path: Path
) -> None:
    assert advised(draw(tmp_path, {"a": (side, side)}), **keys) == {"image_size": expected}


def test_a_network_of_ones_own_knows_its_size(tmp_path: Path) -> None:
    assert advised(draw(tmp_path, {"a": (64, 64)}), model="hf:/models/vit") == {}


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (["A", "B", "c"], ["A", "B", "c"]),
        ([str(number) for number in range(12)], [str(number) for number in range(12)]),
        (["knee_left", "knee_right", "hip"], ["knee_left", "knee_right"]),
        (["turn-RIGHT", "stop"], ["turn-RIGHT"]),
        (["bright", "leftover", "copyright"], []),
        (["bird", "x", "feather"], []),
        (["001", "002"], []),
    ],
)
def test_signs_and_sides_are_no_longer_themselves_in_a_mirror(
    classes: list[str], expected: list[str]
) -> None:
    assert mirror_changes(classes) == expected


def test_a_recipe_says_what_was_found_and_why(tmp_path: Path, installed: bool) -> None:
    root = draw(tmp_path / "signs", {"a": (28, 28), "b": (28, 28)}, ("3", "7"))
    text = first_recipe(scan(root))
    keys = tomllib.loads(text)
    assert (keys["model"], keys["trunk"], keys["image_size"], keys["mirror"]) == (
        ("efficientnet-lite0", "frozen", 160, "no") if installed else ("convnet", "trained", 32, "no")
    )
    assert "your images have 28 pixels" in text
    assert "no longer what they are called: 3, 7" in text
    assert "least_participants = 10  # but so many at least; here all do" in text
    plain = RunSpec.make(benchmark=str(root), source="a")
    changed = {"mirror": "no", "image_size": keys["image_size"]}
    assert RunSpec.make(**keys).digest() == plain.replace(**changed).digest()


def test_a_recipe_of_objects_leaves_mirroring_and_names_it(tmp_path: Path, installed: bool) -> None:
    text = first_recipe(scan(draw(tmp_path, {"a": (300, 300), "b": (300, 300), "c": (9, 9), "d": (9, 9)})))
    assert "mirror" not in tomllib.loads(text)
    assert '# mirror = "no"  # for what has a side' in text
    assert "here 10 of 15 do" in text


def test_a_recipe_for_sites_has_the_practitioners_keys(tmp_path: Path) -> None:
    for site in ("east", "west"):
        (tmp_path / site).mkdir()
        Image.new("RGB", (9, 9)).save(tmp_path / site / "1.png")
    text = first_recipe(scan(tmp_path))
    keys = tomllib.loads(text)
    assert (keys["clients"], keys["source_model"], keys["method"]) == (str(tmp_path), "MODEL", "fedsite")
    assert not {"model", "image_size", "benchmark"} & set(keys), "the model's card decides them"
    assert "fedscal pretrain --data FOLDER --out MODEL" in text
    assert "here all do" in text


def test_mirror_and_crops_decide_the_views(tmp_path: Path) -> None:
    root = draw(tmp_path, {"a": (8, 8), "b": (8, 8)})
    plain = RunSpec.make(benchmark=str(root), source="a", method="fedscal")
    assert load_data(plain).views == PHOTOGRAPHS
    assert load_data(plain.replace(mirror="no")).views == replace(PHOTOGRAPHS, flip=False)
    cut = load_data(plain.replace(crops=0.9, framing="whole", mirror="yes")).views
    assert isinstance(cut, AugmentedViews)
    assert (cut.crop_area, cut.flip, cut.whole) == ((0.9, 1.0), True, True)


def test_pretrain_looks_at_the_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "photos"
    for label in ("left", "right"):
        (root / label).mkdir(parents=True)
        Image.new("RGB", (64, 64)).save(root / label / "1.png")
    spec = jobs._looked_at(root, {"method": "fedscal"}, quiet=False)
    assert (spec.source, spec.image_size, spec.mirror) == ("photos", 64, "no")
    said = capsys.readouterr().err
    assert "image_size=64: your images have 64 pixels" in said
    assert "mirror=no" in said
    spec = jobs._looked_at(root, {"method": "fedscal", "image_size": "96", "mirror": "yes"}, quiet=False)
    assert (spec.image_size, spec.mirror) == (96, "yes")
    assert capsys.readouterr().err == ""


def test_unlabelled_sites_can_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    for site, count in {"east": 8, "west": 1}.items():
        (tmp_path / "sites" / site).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (9, 9), (10 * number, 0, 0)).save(tmp_path / "sites" / site / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["data", "show", f"{tmp_path / 'sites'}/"])
    assert ended.exit_code == 0, ended.output
    rows = [line.split("\t")[:5] for line in (tmp_path / "sites.tsv").read_text().splitlines()[1:]]
    assert [row[2] for row in rows] == ["east"] * 8 + ["west"]
    assert rows[6] == ["2", "1", "east", "", "6"]
    assert Image.open(tmp_path / "sites.png").size == (80 + 2 * (6 * 98 + 6), 16 + 2 * 98)
