"""``fedscal data check DIR``: what a folder holds, before it is trusted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedscal.data.folders.examine import examine
from fedscal.data.folders.scan import scan


def test_a_domain_that_lacks_classes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    for number, place in enumerate(("a/x", "a/y", "a/z", "b/y", "c")):
        (tmp_path / "data" / place).mkdir(parents=True)
        noise = np.random.default_rng(number).integers(0, 256, (9, 9, 3), dtype=np.uint8)
        Image.fromarray(noise).save(tmp_path / "data" / place / "1.png")
    assert list(examine(scan(tmp_path / "data")).oddities()) == ["b lacks 2 of 3 classes, the first x"]


def test_broken_shared_repeated_and_foreign_files_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "data"
    for domain in ("a", "b"):
        for label, colour in {"x": 10, "y": 20}.items():
            folder = root / domain / label
            folder.mkdir(parents=True)
            Image.new("L", (9, 9), colour + ord(domain)).save(folder / "1.png")
    shutil.copy(root / "a/x/1.png", root / "b/x/2.png")
    shutil.copy(root / "a/y/1.png", root / "a/y/again.png")
    (root / "a/x/cut.jpg").write_bytes(b"\xff\xd8")
    (root / "a/x/notes.txt").write_text("hello")
    (root / "a/x/.DS_Store").write_text("hello")
    (root / "nothing").mkdir()
    found = examine(scan(root))
    assert {domain: dict(counts) for domain, counts in found.counts.items()} == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 2, "y": 1},
    }
    assert [bad.path.name for bad in found.bad] == ["cut.jpg"]
    assert found.shared == {("a", "b"): 1}
    assert found.repeated == {"a": 1}
    assert list(found.warnings())[1:] == [
        "1 image is in a and in b alike",
        "1 image of a is there more than once",
        "3 images of a are one even colour",
        "3 images of b are one even colour",
    ]
    assert list(found.oddities())[4:] == [
        "1 file is passed over: no ending of an image",
        "1 hidden file is passed over",
        "nothing holds no image",
    ]
    assert next(found.warnings()).startswith("1 file is no whole image and left out, the first ")
    assert json.loads(json.dumps(found.as_dict()))["shared"] == [{"domains": ["a", "b"], "images": 1}]
