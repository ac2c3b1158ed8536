"""Folders as users have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscal.data.folders import scan
from fedscal.errors import DataRefused


def touch(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def names(root: Path) -> dict[str, list[tuple[str, str | None]]]:
    return {domain: [(f.path.name, f.label) for f in files] for domain, files in scan(root).domains.items()}


def test_domains_and_classes_are_folders(tmp_path: Path) -> None:
    touch(tmp_path, "Art/Bike/1.jpg", "Art/Alarm Clock/2.PNG", "Clipart/Bike/3.jpeg", "readme.txt")
    assert names(tmp_path) == {
        "Art": [("2.PNG", "Alarm Clock"), ("1.jpg", "Bike")],
        "Clipart": [("3.jpeg", "Bike")],
    }
    assert scan(tmp_path).classes == ("Alarm Clock", "Bike")


def test_office_31_keeps_its_classes_in_images(tmp_path: Path) -> None:
    touch(tmp_path, "amazon/images/mug/1.jpg", "dslr/images/mug/2.jpg")
    assert names(tmp_path) == {"amazon": [("1.jpg", "mug")], "dslr": [("2.jpg", "mug")]}


def test_a_site_without_classes_has_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "site-a/1.png", "site-b/2.png")
    assert names(tmp_path) == {"site-a": [("1.png", None)], "site-b": [("2.png", None)]}
    assert scan(tmp_path).classes == ()


def test_other_files_are_counted_and_hidden_ones_not_seen(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "a/x/1.png",
        "a/x/notes.txt",
        "a/x/.DS_Store",
        "a/.cache/2.png",
        ".git/x/3.png",
        "a/x/deep/4.png",
    )
    assert names(tmp_path) == {"a": [("1.png", "x"), ("4.png", "x")]}
    assert scan(tmp_path).others == 1


def test_images_beside_class_folders_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1.png", "a/stray.png")
    with pytest.raises(DataRefused, match=r"stray\.png"):
        scan(tmp_path)


@pytest.mark.parametrize("made", [(), ("a/notes.txt",)])
def test_a_folder_without_images_says_what_was_expected(tmp_path: Path, made: tuple[str, ...]) -> None:
    touch(tmp_path, *made)
    with pytest.raises(DataRefused, match="<domain>/<class>/<image>"):
        scan(tmp_path)


def test_what_is_no_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match="nowhere is not a folder"):
        scan(tmp_path / "nowhere")
