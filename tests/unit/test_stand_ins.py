"""Drawn trees: as many images as published, dealt unevenly, the same whoever draws them and when."""

from __future__ import annotations

import io
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fedscal.core.errors import OutOfSpace
from fedscal.data.registry import benchmark
from fedscal.paper import stand_ins
from fedscal.paper.datasets import DATASETS, locate
from fedscal.paper.stand_ins import Domain, Picture, announced, class_counts, expected_bytes, stand_in

PLAIN = Domain("a", images=12, classes=(2, 6), sides=(20, 40, 80), ground="white")


@pytest.mark.parametrize("name", ["office-home", "office-31", "domainnet"])
def test_a_whole_tree_has_the_published_images_of_every_domain(name: str, tmp_path: Path) -> None:
    data = DATASETS[name]
    found = Counter(picture.domain.folder for picture in stand_in(name, tmp_path, 1.0).pictures())
    folders = data.folders(list(found))
    assert folders
    for domain, images in data.domains.items():
        assert found[folders[domain]] == images or not images  # DomainNet's are not published


@settings(max_examples=20, deadline=None)
@given(least=st.integers(1, 5), room=st.integers(0, 20), classes=st.integers(1, 8), share=st.floats(0, 1))
def test_images_are_dealt_to_all_classes_within_their_bounds(
    least: int, room: int, classes: int, share: float
) -> None:
    images = least * classes + int(share * room * classes)
    counts = class_counts(Domain("a", images, (least, least + room), (9, 9, 9), "white"), classes, "x")
    assert sum(counts) == images
    assert least <= min(counts) <= max(counts) <= least + room


def test_classes_are_uneven() -> None:
    counts = class_counts(Domain("Art", 2427, (15, 99), (9, 9, 9), "white"), 65, "office-home")
    assert max(counts) > 3 * min(counts)


def test_a_share_is_a_part_of_the_whole_and_every_class_has_an_image(tmp_path: Path) -> None:
    whole, part, least = (
        {picture.path.relative_to(tree.root) for picture in tree.pictures()}
        for tree in (stand_in("office-31", tmp_path, share) for share in (1.0, 0.1, 0.0001))
    )
    assert least < part < whole
    assert len(least) == 3 * 31
    assert 0.09 < len(part) / len(whole) < 0.12


def test_a_picture_is_decided_by_its_name_alone(tmp_path: Path) -> None:
    one = Picture("x", PLAIN, 3, 5, tmp_path / "a.jpg")
    assert one.draw() == one.draw() == Picture("x", PLAIN, 3, 5, tmp_path / "b.jpg").draw()
    others = [Picture("y", PLAIN, 3, 5, tmp_path), Picture("x", PLAIN, 4, 5, tmp_path)]
    assert len({picture.draw() for picture in [one, Picture("x", PLAIN, 3, 6, tmp_path), *others]}) == 4


def test_the_first_pictures_have_the_shortest_and_the_longest_side(tmp_path: Path) -> None:
    def size(label: int, number: int) -> tuple[int, int]:
        return Image.open(io.BytesIO(Picture("x", PLAIN, label, number, tmp_path).draw())).size

    assert (size(0, 0), size(0, 1)) == ((20, 20), (80, 60))
    for number in range(20):
        assert all(20 <= side <= 80 for side in size(1, number))


def test_what_is_there_is_left_and_the_rest_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = stand_in("office-31", tmp_path, 0.0001)
    missing = tree.missing()
    assert len(missing) == 93
    missing[0].path.parent.mkdir(parents=True)
    missing[0].path.write_bytes(b"somebody's")
    assert tree.missing() == missing[1:]
    done: list[int] = []
    tree.draw(tree.missing()[:40], 2, lambda: done.append(1))
    assert len(done) == 40
    assert len(tree.missing()) == 52
    monkeypatch.setattr(Picture, "draw", missing[5].draw)
    tree.draw(tree.missing(), 1, lambda: None)
    assert not tree.missing()
    assert missing[0].path.read_bytes() == b"somebody's"
    copy = locate([DATASETS["office-31"]], [tree.root])["office-31"]
    assert next(copy.flaws(benchmark(str(tree.root)))) == (
        "the images are drawings for a rehearsal and not Office-31"
    )


def test_an_interrupt_does_not_wait_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    def slow(self: Picture) -> bytes:
        time.sleep(0.02)
        return b""

    monkeypatch.setattr(Picture, "draw", slow)
    tree = stand_in("office-31", tmp_path, 0.0001)
    with pytest.raises(KeyboardInterrupt):
        tree.draw(tree.missing(), 1, interrupted)
    assert len(tree.missing()) > 60


def test_bytes_are_estimated_from_a_few_and_must_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = PLAIN, Domain("b", 12, (2, 6), (20, 40, 80), "white")
    sizes = {small: 10, large: 1000}
    monkeypatch.setattr(Picture, "draw", lambda self: b"." * sizes[self.domain])
    missing = [Picture("x", domain, 0, number, tmp_path) for domain in sizes for number in range(12)]
    assert expected_bytes(missing) == 12 * 10 + 12 * 1000
    assert announced("X", missing, tmp_path) == f"to draw for X: 24 images, about 12.1 kB, in {tmp_path}"
    monkeypatch.setattr(stand_ins, "expected_bytes", lambda missing: 10**18)
    with pytest.raises(OutOfSpace, match="the drawings for X take"):
        announced("X", missing, tmp_path)
