"""docs/fidelity.md: every statement has an answer, and the code and tests that it names are there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fidelity.md").read_text()
ROWS = [[cell.strip() for cell in line.split(" | ")] for line in re.findall(r"^\| (\d.*?) ?\|$", PAGE, re.M)]
CODE = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[3])})
TESTS = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[4] if len(row) > 4 else "")})
ANSWERS = ("as printed", "chosen", "reconstruction", "ours", "not so")


@cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_statements_are_numbered_without_a_gap() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, 111))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_statement_has_an_answer_and_a_place_and_what_is_as_printed_a_test(row: list[str]) -> None:
    assert row[1]
    assert row[2].startswith(ANSWERS)
    assert "`" in row[3] or "drawn anew in [" in row[2], "a scheme is in the docs"
    if row[2].startswith(("as printed", "chosen")):
        assert "::test_" in row[4]


@pytest.mark.parametrize("name", CODE)
def test_code_that_is_named_is_there(name: str) -> None:
    if "/" in name:
        assert (ROOT / "src" / "fedscal" / name).is_file()
    else:
        assert resolve_name(f"fedscal.{name}") is not None


@pytest.mark.parametrize("name", TESTS)
def test_a_test_that_is_named_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    assert function in functions_of(file)
