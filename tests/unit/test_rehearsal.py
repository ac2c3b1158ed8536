"""A rehearsal keeps to itself: its directory, its cache, its keys, its network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedscal.core.errors import UsageError
from fedscal.core.files import cache_dir
from fedscal.paper import rehearsal
from fedscal.paper.tables import TABLES


def test_tables_and_rehearsals_never_share_a_directory(tmp_path: Path) -> None:
    mine, others = tmp_path / "mine", tmp_path / "others"
    rehearsal.claim(mine)
    rehearsal.claim(mine)  # it may be repeated
    with pytest.raises(UsageError, match="holds a rehearsal"):
        rehearsal.refuse(mine)
    (others / "cells").mkdir(parents=True)
    rehearsal.refuse(others)
    with pytest.raises(UsageError, match="holds other things than a rehearsal"):
        rehearsal.claim(others)
    assert [entry.name for entry in others.iterdir()] == ["cells"]


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_the_cache_is_the_rehearsals_own_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    monkeypatch.delenv("FEDSCAL_CACHE", raising=False)
    if before:
        monkeypatch.setenv("FEDSCAL_CACHE", before)
    with rehearsal.own_cache(tmp_path):
        assert cache_dir("images") == tmp_path / "cache" / "images"
    assert os.environ.get("FEDSCAL_CACHE") == before


def test_given_keys_stand_over_the_quick_ones(tmp_path: Path) -> None:
    given = {"model": "convnet", "rounds": "7", "seed": "3"}
    found = rehearsal.keys(TABLES["office-31"], given, tmp_path)
    assert found == {**given, "local_epochs": 1, "pretrain_epochs": 30, "image_size": 32}
    assert not (tmp_path / "model").exists()


def test_timed_runs_are_as_many_and_as_long_as_the_table_says(tmp_path: Path) -> None:
    assert not {"rounds", "seeds"} & set(rehearsal.keys(TABLES["cost"], {"model": "convnet"}, tmp_path))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("office-home", {"methods": "fedprox", "sources": "art"}),
        ("domainnet", {"methods": "fedprox", "sources": "quickdraw"}),
        ("office-31", None),  # has neither of the sources
        ("ablation", None),  # has no such row
    ],
)
def test_tables_take_of_the_choices_what_they_have(name: str, expected: dict[str, str] | None) -> None:
    given = {"methods": "fedprox", "sources": "art, quickdraw", "lr": "1"}
    found = rehearsal.fitting(TABLES[name], given)
    assert found == (expected and {**expected, "lr": "1"})


def test_keys_that_a_table_is_about_are_left_to_it() -> None:
    given = {"rounds": "3", "tau_init": "0.5"}
    assert rehearsal.fitting(TABLES["cost"], given) == {"tau_init": "0.5"}
    assert rehearsal.fitting(TABLES["figures"], given) == {"rounds": "3"}
