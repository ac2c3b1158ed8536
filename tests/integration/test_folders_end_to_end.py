"""A user's folders, as they are on disk: check, run, predict, export."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from harness import summary
from PIL import Image

SMALL = ["model=convnet", "image_size=32", "rounds=2", "local_epochs=1", "pretrain_epochs=8", "batch_size=16"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """Three domains of three classes: a bright bar at the left, in the middle or at the right."""
    root, random = tmp_path_factory.mktemp("tree"), np.random.default_rng(0)
    for domain, ground in {"Art": 20, "Clip art": 60, "Photo": 100}.items():
        for place, label in enumerate(("left", "middle", "right")):
            folder = root / domain / label
            folder.mkdir(parents=True)
            for number in range(12):
                pixels = random.integers(0, ground, (40, 48, 3), dtype=np.uint8)
                pixels[:, 16 * place : 16 * place + 16] += 120
                Image.fromarray(pixels).save(folder / f"{number}.{'png' if number % 2 else 'jpg'}")
    return root


@pytest.fixture(scope="module")
def run(fedscal, tree, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("folders") / "run"
    ended = fedscal("run", f"benchmark={tree}", "source=Art", *SMALL, "workers=1", "--out", out)
    assert ended.code == 0, ended.err
    return out


def test_a_run_on_folders_judges_every_domain(run):
    found = summary(run)["accuracy"]["last"]
    assert found.keys() == {"Clip art", "Photo", "average"}
    card = json.loads((run / "model" / "last.json").read_text())
    assert card["classes"] == ["left", "middle", "right"]


def test_the_model_answers_for_single_files(fedscal, run, tree, tmp_path):
    out = tmp_path / "answers.csv"
    ended = fedscal("predict", run, tree / "Photo" / "left", "--out", out)
    assert ended.code == 0, ended.err
    rows = list(csv.DictReader(out.open()))
    assert len(rows) == 12
    assert {row["label"] for row in rows} <= {"left", "middle", "right"}


def test_broken_files_are_refused_or_skipped(fedscal, tree, tmp_path):
    root = Path(shutil.copytree(tree, tmp_path / "tree"))
    (root / "Photo" / "left" / "cut.jpg").write_bytes(b"\xff\xd8\xff")
    words = [f"benchmark={root}", "source=Art", *SMALL, "workers=1", "--quiet", "--no-report"]
    refused = fedscal("run", *words, "--out", tmp_path / "refused")
    assert refused.code == 3
    assert "1 of 37 files cannot be used" in refused.error
    assert "cut.jpg" in refused.error
    assert not (tmp_path / "refused" / "spec.toml").exists()
    assert fedscal("data", "check", root).code == 3
    assert fedscal("run", *words, "on_bad=skip", "--out", tmp_path / "skipped").code == 0


def test_a_source_without_class_folders_is_refused(fedscal, tree, tmp_path):
    (tmp_path / "tree" / "plain").mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (9, 9)).save(tmp_path / "tree" / "plain" / f"{number}.png")
    (tmp_path / "tree" / "Photo").symlink_to(tree / "Photo")
    words = [f"benchmark={tmp_path / 'tree'}", "source=plain", *SMALL, "workers=1", "--quiet"]
    ended = fedscal("run", *words, "--out", tmp_path / "run")
    assert ended.code == 3
    assert "has no labels" in ended.error


def test_domains_with_other_classes_are_refused_with_the_difference(fedscal, tree, tmp_path):
    root = Path(shutil.copytree(tree, tmp_path / "tree"))
    shutil.rmtree(root / "Photo" / "middle")
    ended = fedscal("run", f"benchmark={root}", "source=Art", *SMALL, "--out", tmp_path / "run")
    assert ended.code == 3
    assert "Photo lacks middle" in ended.error
