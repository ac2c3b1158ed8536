"""Folders as users have them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedscal.core.errors import DataRefused, UsageError
from fedscal.data.folders.examine import findings
from fedscal.data.folders.scan import scan
from fedscal.data.folders.tree import as_sites, read_here


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
    tree = scan(tmp_path)
    assert (tree.others, tree.hidden) == (1, 3)  # .git, .cache and .DS_Store


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
    with pytest.raises(DataRefused, match=r"there is no folder .*nowhere"):
        scan(tmp_path / "nowhere")


def test_office_home_is_read_as_it_is_unpacked(tmp_path: Path) -> None:
    inner = "OfficeHomeDataset_10072016"
    touch(tmp_path, f"{inner}/ImageInfo.csv", f"{inner}/imagelist.txt", "__MACOSX/._x")
    touch(tmp_path / inner, "Art/Alarm_Clock/00001.jpg", "Real World/Alarm_Clock/00001.jpg")
    expected = {"Art": [("00001.jpg", "Alarm_Clock")], "Real World": [("00001.jpg", "Alarm_Clock")]}
    assert names(tmp_path) == names(tmp_path / inner) == expected
    assert scan(tmp_path).root == tmp_path / inner


def test_office_31_may_lie_one_folder_deeper_too(tmp_path: Path) -> None:
    touch(tmp_path, "office31/amazon/images/mug/1.jpg", "office31/dslr/images/mug/2.jpg")
    assert list(scan(tmp_path).domains) == ["amazon", "dslr"]


def test_a_lone_domain_is_no_wrapping(tmp_path: Path) -> None:
    touch(tmp_path, "site/cat/1.png", "site/dog/deep/2.png")
    assert names(tmp_path) == {"site": [("1.png", "cat"), ("2.png", "dog")]}


def test_folders_without_an_image_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png", "b/notes.txt")
    (tmp_path / "c").mkdir()
    assert scan(tmp_path).empty == ("b", "c")


def test_the_same_folder_under_two_names_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.png")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UsageError, match=r"a and .*b are the same folder"):
        scan(tmp_path)


def test_a_linked_class_is_followed_and_a_circle_refused(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/1.png", "data/a/y/2.png")
    (tmp_path / "data" / "a" / "x").symlink_to(tmp_path / "elsewhere")
    assert names(tmp_path / "data") == {"a": [("1.png", "x"), ("2.png", "y")]}
    (tmp_path / "data" / "a" / "y" / "again").symlink_to(tmp_path / "data" / "a")
    with pytest.raises(DataRefused, match="leads to a folder that is there already"):
        scan(tmp_path / "data")


def test_a_folder_that_is_called_like_an_image_is_not_overlooked(tmp_path: Path) -> None:
    touch(tmp_path, "a/x/1.png")
    (tmp_path / "a" / "x" / "2.jpg").mkdir()
    assert names(tmp_path) == {"a": [("1.png", "x"), ("2.jpg", "x")]}


def test_pickled_lists_alone_say_what_to_do(tmp_path: Path) -> None:
    touch(tmp_path, "clipart_train.pkl")
    with pytest.raises(DataRefused, match="classes=domainnet-10"):
        scan(tmp_path)


def test_sites_whose_folders_are_no_classes_of_a_model_have_no_labels(tmp_path: Path) -> None:
    touch(tmp_path, "a/2024/1.png", "a/2025/05/2.png", "b/cat/3.png", "b/odd/4.png", "c/5.png")
    tree = as_sites(scan(tmp_path), ["cat", "dog"])
    labels = {name: [file.label for file in files] for name, files in tree.domains.items()}
    assert labels == {"a": [None, None], "b": ["cat", "odd"], "c": [None]}
    assert tree.nested == ("a",)
    assert any("in a is called like a class" in text for text in findings(tree, {}).warnings())


@pytest.fixture
def plain_install(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Find neither pydicom nor a Pillow that reads AVIF."""
    monkeypatch.setattr("fedscal.data.folders.tree.find_spec", lambda name: None)
    monkeypatch.setattr("fedscal.data.folders.tree.features.check", lambda name: False)
    read_here.cache_clear()
    yield
    read_here.cache_clear()


@pytest.mark.usefixtures("plain_install")
def test_images_of_formats_that_are_not_read_are_named_with_what_reads_or_converts_them(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "a/1.png", "a/2.DCM", "a/3.dcm", "a/4.heic", "a/5.avif", "a/notes.txt")
    tree = scan(tmp_path)
    assert (tree.foreign, tree.others) == ({".dcm": 2, ".heic": 1, ".avif": 1}, 1)
    told = list(findings(tree, {}).warnings())
    assert told[0].startswith("1 file ends in .avif and is not read; a newer Pillow reads AVIF")
    assert told[1].startswith("2 files end in .dcm and are not read; pip install 'fedscal[dicom]' reads")
    assert "heif-convert" in told[2]


def test_a_folder_of_such_images_alone_is_refused_with_that(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.heic")
    with pytest.raises(DataRefused, match=r"1 file ends in \.heic and is not read.*heif-convert"):
        scan(tmp_path)
