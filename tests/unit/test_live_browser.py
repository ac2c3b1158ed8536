"""The live view in a real browser: the page turns when a round arrives, and the reader stays where he was."""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_live import watching
from test_report import make_lines, summarise, write_run

from fedscal.core.files import only_process
from fedscal.experiment.load import Run
from fedscal.report import page as pages

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytest.importorskip("playwright", reason="a browser is driven by playwright, of the extra dev: make setup")
from tools.browser import DRAWN, executable, launched, until

pytestmark = pytest.mark.skipif(
    executable() is None,
    reason="there is no browser: install Chromium (apt-get install chromium) or name one by FEDSCAL_BROWSER",
)
HALF_A_LINE = 12
"""Pixels: charts that are drawn anew may come out a little higher, and the reader still knows the line."""
SECONDS = 60_000
"""Milliseconds for what takes two seconds on a machine that is not busy."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of a real browser, which must not complain."""
    page = browser.new_page(viewport={"width": 1280, "height": 500})
    page.set_default_timeout(SECONDS)
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    yield page
    page.close()
    assert trouble == []


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def url(run: Path) -> Iterator[str]:
    with watching(run) as browser:
        yield browser.server.url


def come_back(page: Page) -> None:
    """Make the page look at once, as it does for a reader who comes back to it."""
    page.evaluate("setTimeout(() => document.dispatchEvent(new Event('visibilitychange')), 50)")


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
        come_back(page)
        page.get_by_text("Round 2 of 4").wait_for()
        page.locator("header", has_text="1 round ·").wait_for()
        until(page, DRAWN)
        page.evaluate("document.querySelector('#setup h2').scrollIntoView({behavior: 'instant'})")
        page.evaluate("document.loaded = 'once'")
        page.wait_for_timeout(100)
        place = top_of(page, "#setup h2")
        assert 0 < place < 250
        lines[2]["warnings"] = ["a line more above the reader's place"]
        write_run(run, lines[:3], None, rounds=4)
        come_back(page)
        page.locator("header", has_text="2 rounds ·").wait_for(state="attached")
        page.get_by_text("Round 3 of 4").wait_for()
        assert abs(top_of(page, "#setup h2") - place) < HALF_A_LINE
    come_back(page)
    page.get_by_text("Stopped after round 2 of 4").wait_for()
    write_run(run, lines, summarise(lines), rounds=4)
    come_back(page)
    page.get_by_text("Finished after 4 rounds").wait_for()
    page.locator("header", has_text="4 rounds ·").wait_for(state="attached")
    assert page.title().startswith("Finished after 4 rounds · ")
    assert page.evaluate("document.loaded") == "once"
    shutil.rmtree(run)
    come_back(page)
    page.get_by_text("The run was removed").wait_for()
    assert page.locator("main").is_visible()


DRAW = "document.querySelector('#chart').textContent = document.getElementById('data').textContent;"
SCRIPTS = {
    "drawn again": f"window.fedscalDraw = (root) => {{ {DRAW} }}; window.fedscalDraw();",
    "loaded again": DRAW,
}
PAGE = """<html><head><title>a run</title>
<meta http-equiv="Content-Security-Policy" content="POLICY">
<style>p { height: 400px } main div { overflow-x: auto }</style></head><body><main><section id="one">
<p>first</p><p id="chart"></p><details><summary>more</summary></details>
<div><span style="padding: 3000px"></span><a href="#one" id="link">wide</a></div><p>last</p></section></main>
<script type="application/json" id="data">ROUND</script><script>SCRIPT</script></body></html>"""


def with_script(run: Run, script: str) -> str:
    """Return a page whose own script draws what a block of data says."""
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'"
    parts = {"SCRIPT": script, "POLICY": policy, "ROUND": str(run.last_round)}
    return reduce(lambda page, name: page.replace(name, parts[name]), parts, PAGE)


@pytest.mark.parametrize("how", SCRIPTS)
def test_a_page_with_a_script_is_drawn_by_it_or_loaded_again(
    page: Page, run: Path, url: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(pages, "report_page", lambda run: with_script(run, SCRIPTS[how]))
    lines = make_lines()
    write_run(run, lines[:2], None, rounds=4)
    page.goto(url)
    page.locator("#chart", has_text="1").wait_for()
    page.locator("summary").click()
    page.locator("#link").focus()
    page.evaluate("document.querySelector('main div').scrollLeft = 300; window.scrollTo(0, 350)")
    page.evaluate("document.loaded = 'once'")
    write_run(run, lines[:3], None, rounds=4)
    come_back(page)
    page.locator("#chart", has_text="2").wait_for()
    page.wait_for_function("scrollY === 350")
    once = page.evaluate("document.loaded === 'once'")
    assert once is (how == "drawn again")
    if once:
        assert page.locator("details").get_attribute("open") is not None
        assert page.evaluate("document.activeElement.id") == "link"
        assert page.evaluate("document.querySelector('main div').scrollLeft") == 300
