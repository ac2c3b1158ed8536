"""Names of users in Markdown: whatever they hold, a reader sees the name and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fedscal.core.table import Table, as_markdown

HOSTILE = (
    *(
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "</td>",
        "<!-- x",
        "&lt;b&gt;",
        "&#x3c;b>",
    ),
    *("[a](http://b.example)", "![a](http://b.example/c.png)", "<http://b.example>", "[a]: http://b.example"),
    *(
        "a | b",
        "a || b |",
        "|---|",
        "a\\|b",
        "a\\\\|b",
        "x\n\n# Heading",
        "x\r\n- item",
        "a\u2028b",
        "`a`",
        "``",
        "\\",
    ),
    *(
        "*a*",
        "**a**",
        "_a_",
        "__a__",
        "~~a~~",
        "# a",
        "- a",
        "+ a",
        "1. a",
        "12) a",
        "> a",
        "===",
        "---",
        "    a",
    ),
    *(
        "snow_man",
        "a*b",
        "$x$",
        "\x1b[31m",
        "\u202eabc",
        "\ud800",
        "[x]",
        "a_",
        "_",
        "***",
        "http://b.example",
    ),
)
CHARACTERS = st.sampled_from("ab1 \\`*_{}[]()<>#+-.!|~&;:/=$@\n\t\"'x\u00e9")
_TEXT = {"text", "text_special", "inline", "softbreak", "entity"}


def tokens(text: str) -> Iterator[Token]:
    """Yield everything that a reader of Markdown with tables finds in a text."""
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text):
        yield token
        yield from token.children or ()


def plain(name: str) -> str:
    """Return the name as it should be read: printable, in one line."""
    return " ".join("".join(one if one.isprintable() else " " for one in name).split())


def read(text: str) -> str:
    """Return the text that a reader sees."""
    return " ".join(
        "".join(token.content for token in tokens(text) if token.type in _TEXT - {"inline"}).split()
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_only_text_in_a_paragraph_a_list_and_a_heading(name: str) -> None:
    made = as_markdown(name)
    assert "<" not in made
    for before, kinds in (
        ("", {"paragraph"}),
        ("- ", {"paragraph", "bullet_list", "list_item"}),
        ("# ", {"heading"}),
    ):
        text = before + made
        found = {token.type.removesuffix("_open").removesuffix("_close") for token in tokens(text)}
        assert found <= kinds | _TEXT, text
        assert read(text) == plain(name)


@given(st.text(CHARACTERS, max_size=12))
def test_no_name_becomes_anything_but_text(name: str) -> None:
    found = {token.type for token in tokens("x " + as_markdown(name))}
    assert found <= _TEXT | {"paragraph_open", "paragraph_close"}
    assert read("x " + as_markdown(name)) == f"x {plain(name)}".strip()


def test_a_table_keeps_its_cells_whatever_they_hold() -> None:
    made = Table(
        "<b>", ["site", "|", "c"], [[name, "1", name] for name in HOSTILE], ["<i>", "- note"]
    ).markdown()
    found = list(tokens(made))
    assert sum(token.type == "tr_open" for token in found) == 1 + len(HOSTILE)
    assert sum(token.type == "td_open" for token in found) == 3 * len(HOSTILE)
    assert not {token.type for token in found} & {
        "html_inline",
        "html_block",
        "link_open",
        "image",
        "bullet_list_open",
    }
    cells = [token.content for token in found if token.type == "inline"]
    assert read(cells[4]) == plain(HOSTILE[0])


def test_ordinary_names_and_numbers_stay_readable() -> None:
    for name in ("ward-0", "ice_cream", "+10.0 better", "62.5 %", "FedSCAl, lambda_server=0", "a (b)", "1.5"):
        assert as_markdown(name) == name
