"""An installed Chromium without a window, for the tests of the pages and for screenshots."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DRAWN = "![...document.querySelectorAll('.chart:not(:has(svg))')].some(box => box.checkVisibility())"
"""Whether every chart that is not folded away has been drawn."""
Scheme = Literal["light", "dark"]


def executable() -> str | None:
    """Return the browser that ``FEDSCAL_BROWSER`` names, or one that is installed."""
    return os.environ.get("FEDSCAL_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def launched() -> Iterator[Browser]:
    """Run a browser; playwright downloads none."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable(), headless=True, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def new_page(
    browser: Browser, width: int = 1280, scheme: Scheme = "light", scripts: bool = True, offline: bool = True
) -> Page:
    """Return an empty page, without a network unless it is asked for."""
    return browser.new_page(
        offline=offline,
        viewport={"width": width, "height": 900},
        color_scheme=scheme,
        java_script_enabled=scripts,
        permissions=["clipboard-read", "clipboard-write"],
    )


def show(page: Page, path: Path | str) -> None:
    """Open a file of this machine, or a URL, and wait for its charts."""
    page.goto(path if isinstance(path, str) else path.absolute().as_uri())
    until(page, DRAWN)


def until(page: Page, expression: str, seconds: float = 60.0) -> None:
    """Wait until an expression is true.

    Playwright's own waiting compiles the expression inside the page, which our pages forbid.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        if time.monotonic() > end:
            raise TimeoutError(f"after {seconds:g} s not yet: {expression}")
        page.wait_for_timeout(20)
