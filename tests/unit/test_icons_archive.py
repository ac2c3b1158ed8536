"""Drawing, near-duplicates and the archive, on drawings whose pixels are known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Unpack

import pytest
import torch

from fedscal.core import files
from fedscal.core.errors import DataRefused
from fedscal.data import cache
from fedscal.data.benchmark import Benchmark
from fedscal.data.icons import archive, draw, npm
from fedscal.data.icons.archive import first_of_each, notice
from fedscal.data.icons.benchmark import (
    DOMAINS,
    FIRST,
    ICONS,
    ICONS_64,
    ICONS_B,
    ICONS_B_64,
    ICONS_C,
    ICONS_C_64,
    SECOND,
    THIRD,
)
from fedscal.data.icons.rules import packages, rules
from fedscal.data.labels import labels
from icon_packages import archive_files, icon_set, package, sketches, whole_lock
from icon_packages import tarball as packed
from toys import tensor_of

CANVAS: draw.Box = {"width": 24, "height": 24}
SQUARE = '<path fill="currentColor" d="M2 3h6v6H2z"/>'


def ink(image: torch.Tensor) -> list[int]:
    """Return top, bottom, left and right of what is not white."""
    rows, columns = (image.amin(dim=0) < 128).nonzero(as_tuple=True)
    return [int(edge) for edge in (rows.min(), rows.max(), columns.min(), columns.max())]


def drawn(body: str, **box: Unpack[draw.Box]) -> torch.Tensor:
    image = draw.icon({"body": body, **box}, CANVAS)
    assert image is not None
    assert image.dtype == torch.uint8
    assert image.shape == (3, 64, 64)
    return image


def test_the_ink_is_black_on_white_centred_with_a_margin_of_four_pixels() -> None:
    image = drawn(SQUARE)
    assert ink(image) == pytest.approx([4, 59, 4, 59], abs=1)
    assert image[:, 10:50, 10:50].max() == 0
    assert image[:, :2].min() == 255


def test_the_aspect_is_kept_and_the_sets_own_canvas_does_not_matter() -> None:
    wide = '<path fill="currentColor" d="M2 3h12v6H2z"/>'
    assert ink(drawn(wide)) == pytest.approx([18, 45, 4, 59], abs=1)
    moved = '<path fill="currentColor" d="M102 53h12v6h-12z"/>'
    assert ink(drawn(moved, left=100, top=50, width=48, height=16)) == pytest.approx([18, 45, 4, 59], abs=1)


def test_what_the_canvas_cuts_off_stays_cut_off() -> None:
    across = '<path fill="currentColor" d="M18 3h12v6H18z"/>'
    assert ink(drawn(across)) == pytest.approx([4, 59, 4, 59], abs=1)


def test_colours_stay_and_nothing_is_no_picture() -> None:
    assert drawn('<path fill="#f00" d="M2 3h6v6H2z"/>')[:, 30, 30].tolist() == [255, 0, 0]
    assert draw.icon({"body": "<g/>"}, CANVAS) is None


def test_a_sketch_is_enlarged_upright_and_smoothly() -> None:
    pixels = [0.0] * 784
    for row in range(5, 19):
        pixels[28 * row + 3] = pixels[28 * row + 4] = 1.0
    blank = [0] * 784
    lines = "\n".join(json.dumps(values) for values in ([*pixels, 7, 7], blank))
    (image,) = draw.sketches(gzip.compress(lines.encode()))
    assert ink(image) == [4, 59, 28, 35]
    assert image[:, 30, 31].tolist() == [0, 0, 0]


def test_near_duplicates_go_and_the_first_stays() -> None:
    house = '<path d="M12 2 22 12V22H2V12z"/>'
    nearly = '<path d="M12 2 22 12.1V22H2V12z"/>'
    images = [drawn(body) for body in (house, SQUARE, nearly, house)]
    assert first_of_each(images) == [0, 1]
    assert first_of_each(images[::-1]) == [0, 2]
    assert first_of_each([]) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no tarball", "the tarball of toy cannot be read"),
        (packed({"package/other": b""}), "the tarball of toy has no package/icons.json"),
        (packed({"package/icons.json": bytes(40)}), "is too large"),
        (packed({"package/icons.json": bytes(9)})[:-30], "cannot be read"),
    ],
    ids=["none", "without the file", "too large", "cut off"],  # the bytes hold the time of their making
)
def test_a_bad_tarball_is_refused(data: bytes, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm, "LARGEST_MEMBER", 30)
    with pytest.raises(DataRefused, match=words):
        npm.members(data, ("package/icons.json",), "toy")


def test_only_the_wanted_members_are_read() -> None:
    data = packed({"package/icons.json": b"yes", "../../evil": b"no", "package/package.json": b"no"})
    assert npm.members(data, ("package/icons.json",), "toy") == {"package/icons.json": b"yes"}


def test_the_same_packages_give_the_same_bytes() -> None:
    first, again = archive_files(whole_lock()), archive_files(whole_lock())
    assert first == again
    assert set(first) == {f"{d}.safetensors" for d in DOMAINS} | {
        "index.json",
        "NOTICE.md",
        "manifest.json",
    }


def test_a_hidden_icon_is_left_out() -> None:
    listed = {"icons": {"key": {"body": SQUARE}, "car": {"body": SQUARE, "hidden": True}}, **CANVAS}
    data = packed({"package/icons.json": json.dumps(listed).encode()})
    found = archive.pictures(package("@toys/one", data, {"": "outline"}), data, rules())
    assert [picture.name for picture in found] == ["key"]


def test_other_names_and_duplicates_of_another_set_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path))
    one = icon_set("@toys/one", {"key": SQUARE, "car-fill": SQUARE}, {"": "outline", "fill": "solid"})
    twin = icon_set("@toys/twin", {"key": SQUARE, "car-off": SQUARE}, {"": "outline"})
    files.write_dir(FIRST.directory, archive_files([one, twin, sketches(rules().sketches)]))
    key = {"class": "key", "set": "one", "icon": "key", "licence": "MIT"}
    assert FIRST.index("outline") == [key]
    assert FIRST.index("solid") == [{**key, "class": "car", "icon": "car-fill"}]
    assert FIRST.index("color") == []
    assert FIRST.tensors("outline")["labels"].tolist() == [rules().classes.index("key")]
    assert FIRST.tensors("outline")["groups"].tolist() == [0]


def test_one_lock_gives_each_archive_its_own_classes() -> None:
    shapes = {"key": SQUARE, "crown": SQUARE, "tent": SQUARE}
    icons, data = icon_set("@toys/one", shapes, {"": "outline"})
    for filled, name in ((FIRST, "key"), (SECOND, "crown"), (THIRD, "tent")):
        found = archive.pictures(icons, data, filled.rules)
        assert [picture.name for picture in found] == [name]


def test_without_the_archive_the_command_to_get_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path))
    pairs = {"icons": (ICONS, ICONS_64), "icons-b": (ICONS_B, ICONS_B_64), "icons-c": (ICONS_C, ICONS_C_64)}
    for name, row in ((name, row) for name, rows in pairs.items() for row in rows):
        with pytest.raises(DataRefused, match=f"not there yet: fedscal data get {name}$"):
            cache.images(row, "outline")


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("rows", [(ICONS, ICONS_64), (ICONS_B, ICONS_B_64)])
def test_both_sizes_show_the_same_images_in_the_same_order(rows: tuple[Benchmark, Benchmark]) -> None:
    for domain in DOMAINS:
        small, large = (tensor_of(cache.images(row, domain)) for row in rows)
        pooled = torch.nn.functional.avg_pool2d(large.double(), 2).round()
        assert torch.equal(small.double(), pooled)
        assert torch.equal(*(tensor_of(labels(row, domain)) for row in rows))


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("row", [ICONS, ICONS_B])
def test_groups_are_sets_and_each_sketch_is_its_own(row: Benchmark) -> None:
    assert row.captions is not None
    for domain in DOMAINS:
        groups = cache.groups(row, domain)
        assert groups is not None
        names = row.captions(domain)
        assert len(names) == len(groups) == len(cache.images(row, domain))
        key = [name if domain == "sketch" else name.partition(":")[0] for name in names]
        pairs = set(zip(key, groups.tolist(), strict=True))
        assert len(pairs) == len(set(key)) == len(torch.unique(groups))


def test_the_shipped_notice_is_the_locks() -> None:
    shipped = Path(__file__).parents[2] / "docs" / "data" / "icons-notice.md"
    assert shipped.read_text("utf-8") == notice(packages())


def test_the_notice_credits_every_set() -> None:
    toys = [entry for entry, _ in whole_lock()]
    text = notice(toys)
    assert all(f"| {entry.name} | 1.0.0 | A. Drawer | MIT |" in text for entry in toys)
