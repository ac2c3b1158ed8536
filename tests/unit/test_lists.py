"""List files: DomainNet's, Office's, one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscal.core.errors import DataRefused
from fedscal.data.folders.scan import scan

Listed = dict[str, list[tuple[str, str | None]]]


def write(root: Path, **lists: str) -> Path:
    """Write lists; two underlines in a name stand for a folder."""
    for name, text in lists.items():
        path = root / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def listed(root: Path) -> Listed:
    return {
        domain: [(str(f.path.relative_to(root)), f.label) for f in files]
        for domain, files in scan(root).domains.items()
    }


def test_both_parts_of_domainnet_are_joined(tmp_path: Path) -> None:
    write(
        tmp_path,
        clipart_train="clipart/bird/1.jpg 1\nclipart/axe/2.jpg 0\n",
        clipart_test="clipart/bird/0.jpg 1\nclipart/bird/1.jpg 1\n",
        real_train="real/axe/3.jpg 0\nreal/bird/4.jpg 1\n",
    )
    assert listed(tmp_path) == {
        "clipart": [
            ("clipart/axe/2.jpg", "axe"),
            ("clipart/bird/0.jpg", "bird"),
            ("clipart/bird/1.jpg", "bird"),
        ],
        "real": [("real/axe/3.jpg", "axe"), ("real/bird/4.jpg", "bird")],
    }
    assert scan(tmp_path).classes == ("axe", "bird")


def test_lists_in_a_folder_of_their_own_begin_at_the_root(tmp_path: Path) -> None:
    line = "Real World/Alarm Clock/1.jpg 0\n\nReal World/Bed/2.jpg 1\n"
    write(tmp_path, image_list__Real_World=line)
    assert listed(tmp_path) == {
        "Real_World": [("Real World/Alarm Clock/1.jpg", "Alarm Clock"), ("Real World/Bed/2.jpg", "Bed")]
    }


def test_a_list_beside_its_images_is_its_folder_s(tmp_path: Path) -> None:
    write(tmp_path, train__image_list="bus/1.jpg 0\ncar/2.jpg 1\n", validation__image_list="car/3.jpg 1\n")
    for name in ("train/bus/1.jpg", "validation/car/3.jpg"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert listed(tmp_path) == {
        "train": [("train/bus/1.jpg", "bus"), ("train/car/2.jpg", "car")],
        "validation": [("validation/car/3.jpg", "car")],
    }


def test_numbers_without_class_folders_are_the_classes(tmp_path: Path) -> None:
    write(tmp_path, site="all/1.jpg 7\nall/2.jpg 11\n")
    assert [label for _, label in listed(tmp_path)["site"]] == ["7", "11"]


def test_a_marked_utf_8_list_with_letters_of_any_language_is_read(tmp_path: Path) -> None:
    text = "fotos/Mädchen/ä.jpg 0\nfotos/猫/b.jpg 1\n"
    (tmp_path / "fotos.txt").write_bytes(text.encode("utf-8-sig"))
    assert scan(tmp_path).classes == ("Mädchen", "猫")


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ({"a": "a/x/1.jpg 0\na/y/2.jpg 0\n"}, r"a\.txt, line 2: label 0 contradicts .*'y', for 0 is 'x'"),
        (
            {"a": "a/x/1.jpg 0\na/y/2.jpg 1\n", "b": "b/x/1.jpg 5\nb/y/2.jpg 1\n"},
            r"b\.txt, line 1: label 5 contradicts the folder 'x', for 0 is 'x'",
        ),
        (
            {"a_train": "a/1.jpg 0\n", "a_test": "a/1.jpg 1\n"},
            r"a_train\.txt, line 1: .* label 0, and 1 before",
        ),
        ({"a": "a/x/1.jpg 0\na/y/2.jpg\n"}, r"a\.txt, line 2: expected 'path label', found 'a/y/2\.jpg'"),
    ],
)
def test_contradictions_and_broken_lines_are_named(
    tmp_path: Path, lists: dict[str, str], message: str
) -> None:
    with pytest.raises(DataRefused, match=message):
        scan(write(tmp_path, **lists))


def test_a_list_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a/x/1.jpg 0\na/\xff/2.jpg 1\n")
    with pytest.raises(DataRefused, match=r"a\.txt is not UTF-8 text"):
        scan(tmp_path)


def test_texts_that_are_no_lists_change_nothing(tmp_path: Path) -> None:
    write(tmp_path, readme="the year was 1984\n", imagelist="a/x/1.jpg\n", a__notes="nice 5\n")
    (tmp_path / "a" / "x").mkdir()
    (tmp_path / "a" / "x" / "1.jpg").touch()
    assert listed(tmp_path) == {"a": [("a/x/1.jpg", "x")]}
