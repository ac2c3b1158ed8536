"""The pages in a real browser, without a network: drawn, hovered, sorted, copied, printed, narrow, dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tools import example_runs
from tools.requirements import ROOT

from fedscal.core.text import MINUS
from fedscal.report import write_comparison, write_report

pytest.importorskip("playwright", reason="a browser is driven by playwright, of the extra dev: make setup")
from playwright.sync_api import Browser, Locator, Page
from tools import browser as browsers
from tools.browser import until

pytestmark = pytest.mark.skipif(
    browsers.executable() is None,
    reason="there is no browser: install Chromium (apt-get install chromium) or name one by FEDSCAL_BROWSER",
)
AXE = ROOT / "tests" / "vendor" / "axe.min.js"
HOSTILE = "</script><img src=x onerror=alert(1)>"
ALL = ["labelled", "collapsed", "many", "hostile", "bare", "methods"]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of every kind of run, and of a comparison of ten methods."""
    folder = tmp_path_factory.mktemp("pages")
    healthy = example_runs.HEALTHY
    stories = {
        "labelled": healthy,
        "collapsed": example_runs.COLLAPSED,
        "many": replace(example_runs.MANY, rounds=3),
        "hostile": replace(healthy, domains={HOSTILE: (50.0, 60.0), "b": (60.0, 50.0)}, rounds=2),
        "bare": replace(healthy, rounds=2, answers=False),
    }
    made = {name: write_report(example_runs.write(folder / name, story)) for name, story in stories.items()}
    methods = example_runs.write_methods(folder / "methods", seeds=2)
    (methods[0] / "report.html").touch()
    made["methods"] = write_comparison(methods, folder / "methods" / "comparison.html")
    write_report(methods[0])  # now that there is a comparison to lead back to
    return made


@dataclass
class Shown:
    """An open page, what it complains of, and what it asks for."""

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda said: self.errors.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsers.launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def show(browser: Browser, pages: dict[str, Path]) -> Callable[[str], Shown]:
    """Open a page, once for all tests of this file."""
    shown: dict[str, Shown] = {}

    def opened(name: str) -> Shown:
        if name not in shown:
            shown[name] = Shown(browsers.new_page(browser))
            browsers.show(shown[name].page, pages[name])
        return shown[name]

    return opened


def unfold(page: Page) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    until(page, browsers.DRAWN)


@pytest.mark.parametrize("name", ALL)
def test_a_page_draws_its_charts_asks_for_nothing_and_fits_a_narrow_screen(
    show: Callable[[str], Shown], pages: dict[str, Path], name: str
) -> None:
    shown = show(name)
    unfold(shown.page)
    shown.page.set_viewport_size({"width": 390, "height": 900})
    until(
        shown.page,
        "[...document.querySelectorAll('.chart')].every(box => box.dataset.width == box.clientWidth)",
    )
    wide = shown.page.evaluate("document.documentElement.scrollWidth")
    shown.page.set_viewport_size({"width": 1280, "height": 900})
    assert wide == 390
    assert pages[name].stat().st_size < 1_500_000
    assert shown.errors == []
    assert shown.requests == [pages[name].as_uri()]
    assert shown.page.locator(".chart").count() > 3
    assert shown.page.locator(".chart:not(:has(svg))").count() == 0


@pytest.mark.parametrize(
    ("name", "scheme"), [("labelled", "light"), ("collapsed", "dark"), ("methods", "light")]
)
def test_axe_finds_nothing_serious(show: Callable[[str], Shown], name: str, scheme: browsers.Scheme) -> None:
    page = show(name).page
    page.emulate_media(color_scheme=scheme)
    unfold(page)
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    page.emulate_media(color_scheme="light")
    assert [
        (one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")
    ] == []


def test_dark_pages_have_dark_cards(show: Callable[[str], Shown]) -> None:
    page, sums = show("labelled").page, []
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        colour = page.locator("figure.card").first.evaluate("one => getComputedStyle(one).backgroundColor")
        sums.append(sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))))
    assert sums[0] < 150 < 600 < sums[1]


def test_the_pointer_shows_a_tip(show: Callable[[str], Shown]) -> None:
    page = show("labelled").page
    chart = page.locator('[data-chart="accuracy"] svg').first
    chart.scroll_into_view_if_needed()
    chart.hover()
    tip = chart.locator('g[aria-label="tip"]')
    until(page, "document.querySelector('[data-chart=accuracy] g[aria-label=tip] text') !== null")
    said = tip.text_content() or ""
    assert "round 6" in said
    assert "optdigits: " in said


def test_a_table_sorts_by_click_and_by_key(show: Callable[[str], Shown]) -> None:
    page = show("many").page
    head = page.locator("#clients thead th", has_text="Change")
    head.get_by_role("button").click()
    changes = page.locator("#clients td.change").all_text_contents()
    assert head.get_attribute("aria-sort") == "ascending"
    assert sorted(changes, key=lambda text: float(text.split()[0].replace(MINUS, "-"))) == changes
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert page.locator("#clients td.change").all_text_contents()[0] == changes[-1]


def test_a_long_table_is_filtered_and_says_how_much_is_left(show: Callable[[str], Shown]) -> None:
    page = show("many").page
    rows = page.locator("#clients tbody tr").all_text_contents()
    wanted = page.locator("#clients tbody tr").first.locator("th, td").first.inner_text()
    left = sum(wanted in row for row in rows)
    assert (len(rows), 0 < left < 20) == (20, True), "ten clients at either end"
    page.locator("#clients").get_by_label("Filter").fill(wanted)
    assert page.locator("#clients tbody tr:visible").count() == left
    assert page.locator("#clients .filter .soft").text_content() == f"{left} of 20 rows"
    assert page.locator("#said").text_content() == f"{left} of 20 rows"


def test_a_command_is_copied_by_the_keyboard_and_the_button_says_so(show: Callable[[str], Shown]) -> None:
    page = show("labelled").page
    page.locator(".next button").focus()
    page.keyboard.press("Enter")
    until(page, "document.querySelector('.next button').textContent === 'Copied'")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("fedscal compare ")
    assert copied == page.locator(".next code").text_content()


def choose(radio: Locator) -> None:
    """By the keyboard: charts that are drawn as one scrolls move the place where a click would land."""
    radio.focus()
    radio.press("Space")
    assert radio.is_checked()


def test_a_domain_and_a_view_can_be_chosen(show: Callable[[str], Shown]) -> None:
    page = show("labelled").page
    matrix = page.locator('[data-chart="confusion"]')
    seen = [matrix.inner_html()]
    page.locator(".choice select").select_option("font")
    seen.append(matrix.inner_html())
    choose(page.get_by_label("before", exact=True))
    assert len({*seen, matrix.inner_html()}) == 3
    features = page.locator('figure:has([data-chart="features"])')
    assert features.locator(".colours li").count() == 2
    choose(features.get_by_label("answer"))
    assert features.locator(".colours li").count() == 10


def test_print_opens_the_folds_and_draws_what_is_in_them(browser: Browser, pages: dict[str, Path]) -> None:
    page = browsers.new_page(browser, scheme="dark")
    browsers.show(page, pages["bare"])
    assert page.locator('[data-chart="drift"] svg').count() == 0
    page.pdf()
    assert page.locator('[data-chart="drift"] svg').count() > 0
    assert page.locator("details:not([open])").count() == 0
    page.close()


def test_without_scripts_the_verdict_and_the_numbers_are_there(
    browser: Browser, pages: dict[str, Path]
) -> None:
    page = browsers.new_page(browser, scripts=False)
    page.goto(pages["labelled"].as_uri())
    assert "need JavaScript" in (page.locator("noscript").text_content() or "")
    assert "Better" in (page.locator(".badge").text_content() or "")
    assert page.locator(".tracks circle.after:visible").count() == 3
    assert page.locator("#clients tbody tr:visible").count() == 10
    assert page.locator("figure.drawn:visible, button:visible, select:visible").count() == 0
    page.close()


def test_a_comparison_leads_to_its_runs_and_back(browser: Browser, pages: dict[str, Path]) -> None:
    page = browsers.new_page(browser)
    browsers.show(page, pages["methods"])
    page.locator("#runs a").first.click()
    assert page.url.endswith("mnist-source-only-0/report.html")
    page.get_by_text("to the comparison").click()
    assert page.url == pages["methods"].as_uri()
    page.close()
