"""The ranking of categories by count alone, on sets whose counts are known."""

from __future__ import annotations

from importlib import resources

import pytest
from tools import rank_icons as rank
from tools.rank_icons import Candidate

from fedscal.data.icons.benchmark import ARCHIVES, FIRST, SECOND, THIRD, Archive
from icon_packages import boxes, icon_set, tarball

CATEGORIES = ["ant", "grapes", "hot dog", "zebra"]
STYLES = {"": "outline", "fill": "solid", "color": "color"}
TWICE = boxes("the same", "#000")


def toy_icons() -> dict[str, str]:
    """Return two zebras, a grape and a hot dog in every style, in outline more of them; no ant."""
    names = ["zebra-1", "zebra-alt", "grape", "hotdog"]
    icons = {f"{name}-{style}": boxes(name + style, "#000") for name in names for style in ("fill", "color")}
    icons |= {
        name: boxes(name, "#000") for name in (*names, "hot-dog-2", "zebra-off", "grapefruit", "zebras")
    }
    return icons | {"grapes": TWICE, "grapes-2": TWICE}


def test_categories_are_read_from_the_package_of_sketches() -> None:
    data = tarball({f"package/src/drawings/{name}.ndjson.gz": b"" for name in ("zebra", "hot dog")})
    assert rank.categories(data) == ["hot dog", "zebra"]


def test_a_spelling_differs_by_hyphens_and_a_final_s_alone() -> None:
    names = ["hot-dog", "hotdog", "hot-dogs", "grape", "grapes", "grapefruit", "zebras", "ant-hill"]
    assert rank.spellings(CATEGORIES, names) == {"hot-dog": 2, "hotdog": 2, "grape": 1, "grapes": 1}


def test_distinct_drawings_count_and_the_smallest_count_ranks() -> None:
    entry, data = icon_set("@toys/one", toy_icons(), STYLES)
    taken = rank.by_name_alone(CATEGORIES, [entry], lambda _: data, FIRST.rules)
    assert rank.ranking([entry], lambda _: data, taken) == [
        Candidate("zebra", (2, 2, 2)),
        Candidate("grapes", (2, 1, 1)),
        Candidate("hot dog", (2, 1, 1)),
        Candidate("ant", (0, 0, 0)),
    ]


def test_ties_are_broken_by_the_sum_and_then_by_the_alphabet() -> None:
    unsorted = [
        Candidate("b", (3, 3, 2)),
        Candidate("a", (3, 3, 2)),
        Candidate("c", (2, 2, 9)),
        Candidate("d", (9, 9, 1)),
    ]
    assert [c.category for c in sorted(unsorted, key=lambda c: c.rank)] == ["c", "a", "b", "d"]


def test_what_is_left_out_is_replaced_by_the_next_and_stays_in_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank, "CLASSES", 2)
    ranked = [
        Candidate(name, (count, count, count)) for name, count in (("a", 4), ("b", 3), ("c", 2), ("d", 1))
    ]
    assert rank.first_of(ranked, {"b": "like a"}) == ["a", "c"]
    assert rank.table(ranked, {"b": "like a"}).splitlines()[2:] == [
        "| a | 4 | 4 | 4 |  |",
        "| b | 3 | 3 | 3 | like a |",
        "| c | 2 | 2 | 2 |  |",
    ]


@pytest.mark.parametrize("archive", [SECOND, THIRD])
def test_every_shipped_name_is_a_spelling_of_its_own_class(archive: Archive) -> None:
    shipped = archive.rules
    assert len(shipped.classes) == rank.CLASSES
    assert rank.spellings(shipped.classes, shipped.names) == shipped.names


@pytest.mark.parametrize("archive", [SECOND, THIRD])
def test_what_is_left_out_has_a_reason_and_is_no_class(archive: Archive) -> None:
    text = (resources.files("fedscal.data.icons") / archive.rules_file).read_text("utf-8")
    left_out = rank.reasons(text)
    assert left_out
    assert all(left_out.values())
    assert left_out.keys().isdisjoint({name for one in ARCHIVES for name in one.rules.classes})
