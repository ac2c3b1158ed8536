"""docs/equations.md names functions that are there."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from fedscal import losses

PAGE = Path(__file__).parents[2] / "docs" / "equations.md"
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "`" in line]
NAMES = sorted(
    {name for row in ROWS for name in re.findall(r"`([a-z]+(?:\.\w+)+)`", row)} - {"metrics.jsonl"}
)


def test_the_page_names_most_of_what_it_lists() -> None:
    assert len(NAMES) > 50


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_page_can_be_imported(name: str) -> None:
    assert resolve_name(f"fedscal.{name}") is not None


def test_every_public_loss_is_on_the_page() -> None:
    listed = {name.partition(".")[2] for name in NAMES if name.startswith("losses.")}
    functions = {name for name in losses.__all__ if name.islower()}
    assert functions - listed == set()
