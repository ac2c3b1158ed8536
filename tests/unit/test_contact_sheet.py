"""The contact sheet: which images it shows, where, and what its index says of them."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedscal.cli import app
from fedscal.data import cache
from fedscal.data.benchmark import Benchmark
from fedscal.data.folders.contact_sheet import contact_sheet
from fedscal.data.labels import labels
from fedscal.data.registry import benchmark
from toys import tensor_of


def test_a_sheet_shows_the_first_images_of_each_class(toy_benchmark: Benchmark) -> None:
    named = replace(toy_benchmark, captions=lambda domain: [f"{domain}/{n}" for n in range(30)])
    picture, index = contact_sheet(named)
    rows = [line.split("\t") for line in index.splitlines()[1:]]
    truth = tensor_of(labels(toy_benchmark, "dim"))
    shown = [int(row[4]) for row in rows if row[2:4] == ["dim", "middle"]]
    assert shown == (truth == 1).nonzero().flatten()[:6].tolist()
    assert all(row[5] == f"{row[2]}/{row[4]}" for row in rows)
    sheet = np.array(Image.open(io.BytesIO(picture)))
    _, height, width = toy_benchmark.shape
    first = tensor_of(cache.images(toy_benchmark, "plain"))[int(rows[0][4])]
    assert (sheet[16 : 16 + height, 80 : 80 + width, 0] == first[0].numpy()).all()


def test_the_command_writes_picture_and_index(
    toy_benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["data", "show", "toy"]).exit_code == 0
    assert Image.open("toy.png").format == "PNG"
    assert Path("toy.tsv").read_text().startswith("row\tcolumn\tdomain\tclass\timage\tname\n")
    assert CliRunner().invoke(app, ["data", "show", "toy", "--out", "there/it.png"]).exit_code == 0
    assert Path("there/it.png").read_bytes() == Path("toy.png").read_bytes()


def test_pictures_of_photographs_are_small_enough_for_many_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    for site in ("a", "b", "c"):
        (tmp_path / "sites" / site).mkdir(parents=True)
        Image.new("RGB", (300, 200), "red").save(tmp_path / "sites" / site / "1.png")
    picture, index = contact_sheet(benchmark(str(tmp_path / "sites")))
    sheet = Image.open(io.BytesIO(picture))
    assert sheet.width == 80 + 3 * (6 * (96 + 2) + 6)  # views of a folder have 224 pixels
    assert sheet.getpixel((80 + 50, 16 + 50)) == (255, 0, 0)
    assert [line.split("\t")[2] for line in index.splitlines()[1:]] == ["a", "b", "c"]


def test_what_is_broken_is_left_out_of_a_folder_s_sheet_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites" / "a").mkdir(parents=True)
    Image.new("RGB", (9, 9), "red").save("sites/a/1.png")
    Path("sites/a/2.png").write_bytes(b"no image")
    done = CliRunner().invoke(app, ["data", "show", "sites"])
    assert done.exit_code == 0, done.output
    assert "1 file is no whole image and left out" in done.output
