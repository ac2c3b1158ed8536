"""How large the pages are, and how fast they are written and opened: ``python -m benchmarks.pages``.

Drawn: by the browser's own clock, from the navigation to the moment when every chart that is not folded away
is there. Computed: the processor time of the page's thread until then, which other work on the machine does
not lengthen. Both of the fastest of some openings.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser
from rich.console import Console
from tools.browser import launched, new_page, show
from tools.screenshots import pages

_OPENINGS = 7
_console = Console(width=120)


def opened(browser: Browser, path: Path) -> tuple[float, float]:
    """Return the milliseconds until the charts are drawn, and those that were computed for it."""
    page = new_page(browser)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    show(page, path)
    drawn: float = page.evaluate("performance.getEntriesByName('drawn')[0].startTime")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    page.close()
    return drawn, 1000 * metrics["TaskDuration"]


def main() -> None:
    """Print a line a page."""
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        begun = time.process_time()
        made = pages(Path(folder))
        seconds = time.process_time() - begun
        _console.print(f"{len(made)} pages and their invented runs: {seconds:.1f} s of processor time")
        for name, path in made.items():
            times = [opened(browser, path) for _ in range(_OPENINGS)]
            drawn, computed = (min(part) for part in zip(*times, strict=True))
            kilobytes = path.stat().st_size / 1000
            _console.print(
                f"{name:10} {kilobytes:5.0f} kB, drawn after {drawn:5.0f} ms, {computed:5.0f} ms computed"
            )


if __name__ == "__main__":
    main()
