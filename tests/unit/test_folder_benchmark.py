"""A folder as a benchmark: read once a run, its classes agreed on, its images known by what they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedscal
from fedscal.core.errors import DataRefused
from fedscal.core.types import Progress
from fedscal.data.folders import benchmark as module
from fedscal.data.folders.benchmark import Folder, folder_benchmark
from fedscal.data.folders.decoded import Decoded, decoded
from fedscal.data.folders.tree import File


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two domains of two classes, three images each."""
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    for seed, place in enumerate(("a/x", "a/y", "b/x", "b/y")):
        for number in range(3):
            draw(tmp_path / "data" / place / f"{number}.png", 10 * seed + number)
    return tmp_path / "data"


def draw(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def folder(root: Path, **how: int) -> Folder:
    found = folder_benchmark(str(root), **how).folder  # type: ignore[arg-type]
    assert isinstance(found, Folder)
    return found


def test_files_are_looked_at_once_however_often_they_are_used(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def counted(sources: Sequence[File], side: int, progress: Progress | None, name: str) -> Decoded:
        looks.append(name)
        return decoded(sources, side, progress, name)

    monkeypatch.setattr(module, "decoded", counted)
    found = folder(root)
    found.prepare()
    for domain in ("a", "b"):
        found.images(domain)
        found.labels(domain)
        found.ordered(["y", "x"]).labels(domain)
    found.digest()
    found.warnings()
    assert looks == ["a", "b"]


def test_labels_follow_the_order_of_a_model_s_classes(root: Path) -> None:
    for order, expected in {("x", "y"): [0, 0, 0, 1, 1, 1], ("y", "z", "x"): [2, 2, 2, 0, 0, 0]}.items():
        known = folder(root).ordered(order).labels("a")
        assert known is not None
        assert known.tolist() == expected


def test_the_digest_moves_with_images_labels_and_size(root: Path) -> None:
    before = folder(root, side=32).digest()
    assert folder(root, side=48).digest() != before
    (root / "a/x/0.png").rename(root / "a/y/9.png")
    assert folder(root, side=32).digest() != before


def test_a_second_run_in_a_process_sees_what_was_added(root: Path, tmp_path: Path) -> None:
    keys = {"source": "a", "image_size": 32, "rounds": 1, "local_epochs": 1, "pretrain_epochs": 1}
    counts = []
    for name in ("first", "second"):
        spec = fedscal.RunSpec.make(
            benchmark=str(root), workers=1, clients_per_domain=1, participation=1, **keys
        )
        lines = fedscal.adapt(spec, tmp_path / name).rounds()
        counts.append(lines[0].clients["b-0"].images)
        draw(root / "b/x/new.png", 99)
    assert counts == [6, 7]


def test_domains_of_other_classes_are_refused_unless_a_model_decides(root: Path) -> None:
    draw(root / "a/z/1.png", 7)
    with pytest.raises(DataRefused, match="b lacks z"):
        folder(root).require_same_classes()
