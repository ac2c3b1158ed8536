"""Some of a folder's classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscal.core.errors import DataRefused, UsageError
from fedscal.data.folders.benchmark import SUBSETS, with_classes
from fedscal.data.folders.tree import File, Tree
from fedscal.data.registry import benchmark


def tree(root: Path, **domains: str) -> Tree:
    """Return a file for every letter of a domain, its class the letter; a dot has none."""
    return Tree(
        root,
        {
            domain: tuple(File(root / str(n), None if c == "." else c) for n, c in enumerate(letters))
            for domain, letters in domains.items()
        },
    )


def chosen(tmp_path: Path, text: str) -> str:
    (tmp_path / "classes.txt").write_text(text)
    return str(tmp_path / "classes.txt")


def test_only_the_listed_classes_are_kept(tmp_path: Path) -> None:
    some = with_classes(tree(tmp_path, a="xyzx", b="xyz", c="yy"), chosen(tmp_path, "z\n\nx\nz\n"))
    assert some.classes == ("x", "z")
    assert {d: [f.label for f in files] for d, files in some.domains.items()} == {"a": [*"xzx"], "b": [*"xz"]}
    assert some.empty == ("c",)


def test_without_a_choice_all_are_kept(tmp_path: Path) -> None:
    whole = tree(tmp_path, a="xy", b="..")
    assert with_classes(whole, "") is whole


def test_the_ten_classes_of_domainnet_are_sorted_names(tmp_path: Path) -> None:
    assert len(SUBSETS["domainnet-10"]) == 10
    assert list(SUBSETS["domainnet-10"]) == sorted(SUBSETS["domainnet-10"])


def test_a_class_that_is_not_there_is_named_with_its_neighbour(tmp_path: Path) -> None:
    folder = Tree(tmp_path, {"a": (File(tmp_path / "1", "ice_cream"),)})
    with pytest.raises(DataRefused, match=r"no class 'ice cream' .*did you mean 'ice_cream'"):
        with_classes(folder, chosen(tmp_path, "ice cream\n"))


def test_sites_without_labels_cannot_be_chosen_from(tmp_path: Path) -> None:
    with pytest.raises(DataRefused, match=r"b of .* has no classes"):
        with_classes(tree(tmp_path, a="xy", b=".."), chosen(tmp_path, "x\n"))


@pytest.mark.parametrize("given", ["domainnet-11", "", "\n \n", "x.pkl"])
def test_choices_that_are_none_are_refused_in_one_sentence(tmp_path: Path, given: str) -> None:
    if "\n" in given or not given:
        given = chosen(tmp_path, given)
    with pytest.raises((UsageError, DataRefused)) as error:
        with_classes(tree(tmp_path, a="xy"), given)
    assert "classes=" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_a_built_benchmark_has_no_classes_to_choose() -> None:
    with pytest.raises(UsageError, match="digits is no folder"):
        benchmark("digits", classes="domainnet-10")
