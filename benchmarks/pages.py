"""How large the pages are, and how fast they are written and opened: ``python -m benchmarks.pages``.

By the browser's own clock, from the navigation to the moment when every chart that is not folded away is
drawn; the fastest of some openings, for other work on the machine only delays.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser
from tools.browser import launched, new_page, show
from tools.screenshots import pages

_OPENINGS = 5
_CLOCK = """() => [
    performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd,
    performance.getEntriesByName("drawn")[0].startTime,
]"""


def opened(browser: Browser, path: Path) -> tuple[float, float]:
    """Return the milliseconds until the page is read, and until its charts are drawn."""
    page = new_page(browser)
    show(page, path)
    read, drawn = page.evaluate(_CLOCK)
    page.close()
    return read, drawn


def main() -> None:
    """Print a line a page."""
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        begun = time.process_time()
        made = pages(Path(folder))
        seconds = time.process_time() - begun
        print(f"{len(made)} pages and their invented runs: {seconds:.1f} s of processor time")
        for name, path in made.items():
            times = [opened(browser, path) for _ in range(_OPENINGS)]
            read, drawn = (min(part) for part in zip(*times, strict=True))
            kilobytes = path.stat().st_size / 1000
            print(f"{name:10} {kilobytes:6.0f} kB, read after {read:.0f} ms, drawn after {drawn:.0f} ms")


if __name__ == "__main__":
    main()
