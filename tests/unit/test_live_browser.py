"""The live view in a real browser: the page turns when a round arrives, and the reader stays where he was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_live import watching
from test_report import make_lines, summarise, write_run

from fedscal.core.files import only_process

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("jinja2")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.usefixtures("undrawn"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no browser: apt-get install chromium"),
]
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
SECONDS = 60_000
"""Milliseconds for what takes two seconds on a machine that is not busy."""


@pytest.fixture
def page() -> Iterator[Page]:
    """A page of a real browser, which must not complain."""
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=_FLAGS.split())
        page = browser.new_page(viewport={"width": 1280, "height": 500})
        page.set_default_timeout(SECONDS)
        trouble: list[str] = []
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        yield page
        browser.close()
        assert trouble == []


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def url(run: Path) -> Iterator[str]:
    with watching(run) as browser:
        yield browser.server.url


def top_of(page: Page, selector: str) -> float:
    box = page.locator(selector).bounding_box()
    assert box
    return box["y"]


def test_the_page_follows_a_run_and_the_reader_stays_where_he_was(page: Page, run: Path, url: str) -> None:
    lines = make_lines()
    page.goto(url)
    page.get_by_text("No run here yet").wait_for()
    with only_process(run):
        write_run(run, lines[:2], None, rounds=4)
        page.get_by_text("Round 2 of 4").wait_for()
        page.locator("header", has_text="1 round ·").wait_for()
        page.evaluate("document.querySelector('#setup h2').scrollIntoView()")
        page.evaluate("document.loaded = 'once'")
        page.wait_for_timeout(100)
        place = top_of(page, "#setup h2")
        assert 0 < place < 250
        lines[2]["warnings"] = ["a line more above the reader's place"]
        write_run(run, lines[:3], None, rounds=4)
        page.locator("header", has_text="2 rounds ·").wait_for(state="attached")
        page.get_by_text("Round 3 of 4").wait_for()
        assert abs(top_of(page, "#setup h2") - place) < 3
    page.get_by_text("Stopped after round 2 of 4").wait_for()
    write_run(run, lines, summarise(lines), rounds=4)
    page.get_by_text("Finished after 4 rounds").wait_for()
    page.locator("header", has_text="4 rounds ·").wait_for(state="attached")
    assert page.title().startswith("Finished after 4 rounds · ")
    assert page.evaluate("document.loaded") == "once"
    shutil.rmtree(run)
    page.get_by_text("The run was removed").wait_for()
    assert page.locator("main").is_visible()
