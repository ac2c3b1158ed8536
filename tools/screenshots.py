"""Pictures of the pages for the documentation: ``python -m tools.screenshots`` writes docs/images/*.png.

The runs are invented (``tools.example_runs``): real ones collapse only by luck. README's picture is of a real
one, which ``make demo`` made: ``python -m tools.screenshots runs/demo`` writes demo.png. After
``fedscal reproduce --rehearse``, ``python -m tools.screenshots runs/rehearsal`` writes those of its pages.
Every picture has at most 256 colours, so that it stays small.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from fedscal.core.files import only_process
from fedscal.experiment.announcer import Announcer
from fedscal.experiment.answers import ANSWERS
from fedscal.report import write_comparison, write_report
from fedscal.report.live import Watcher
from tools import example_runs
from tools.browser import Scheme, launched, new_page, show
from tools.requirements import ROOT

FOLDER = ROOT / "docs" / "images"
WIDE, NARROW = 1280, 390
_COLOURS = 256


@dataclass(frozen=True)
class Shot:
    """A picture: which page, from which of its elements on, how wide and how high, in which mode."""

    name: str
    page: str
    width: int = WIDE
    height: int = 1000
    scheme: Scheme = "light"
    begins: str = "header"


SHOTS = (
    Shot("run", "healthy"),
    Shot("run-dark", "healthy", scheme="dark"),
    Shot("run-narrow", "healthy", NARROW, 1400),
    Shot("answers", "healthy", height=1160, begins="#answers"),
    Shot("features-dark", "healthy", height=1120, scheme="dark", begins="#features"),
    Shot("collapsed", "collapsed"),
    Shot("collapsed-narrow-dark", "collapsed", NARROW, 1400, "dark"),
    Shot("many-clients", "many", height=1460),
    Shot("comparison", "methods", height=1250),
    Shot("comparison-narrow-dark", "methods", NARROW, 1400, "dark"),
    Shot("watch", "live", begins="body"),
    Shot("watch-narrow-dark", "live", NARROW, 1400, "dark", begins="body"),
)
REHEARSED = (
    Shot("rehearsal-cost", "cost", height=1100),
    Shot("rehearsal-figures", "figures", height=1360),
)


def pages(folder: Path) -> dict[str, Path]:
    """Write the pages, below a folder whose name a reader sees in their commands."""
    stories = {
        "healthy": example_runs.HEALTHY,
        "collapsed": example_runs.COLLAPSED,
        "many": example_runs.MANY,
    }
    made = {name: write_report(example_runs.write(folder / name, story)) for name, story in stories.items()}
    methods = example_runs.write_methods(folder / "methods")
    return {**made, "methods": write_comparison(methods, folder / "methods" / "comparison.html")}


@contextmanager
def watched(run: Path) -> Iterator[str]:
    """Let a run be under way, serve its live view, and yield the URL."""
    lines = (example_runs.write(run, example_runs.HEALTHY) / "metrics.jsonl").read_text().splitlines(True)
    (run / "metrics.jsonl").write_text("".join(lines[:8]))
    for name in ("summary.json", ANSWERS):
        (run / name).unlink()
    clients = [f"font-{place}" for place in range(5)]
    with only_process(run), Announcer(run) as announcer, Watcher(run, 0) as server:
        announcer.stage("fedscal", 12)
        announcer.asked(8, clients)
        for client in clients[:3]:
            announcer.client(client)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.url
        server.shutdown()


def taken(browser: Browser, shot: Shot, path: Path | str) -> bytes:
    """Return a picture of a page."""
    page = new_page(browser, shot.width, shot.scheme, offline=isinstance(path, Path))
    page.set_viewport_size({"width": shot.width, "height": shot.height})
    show(page, path)
    page.locator(shot.begins).first.evaluate(
        "one => scrollTo({ top: one.getBoundingClientRect().top + scrollY - 60, behavior: 'instant' })"
    )
    page.wait_for_timeout(200)  # the bar at the top settles
    data = page.screenshot()
    page.close()
    return data


def reduced(data: bytes) -> bytes:
    """Return a picture with few colours."""
    # Rare colours are those of the curves: they must not be merged.
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    picture = picture.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return file.getvalue()


def write(shots: Iterable[Shot], made: Mapping[str, Path | str]) -> None:
    """Take the pictures and write them."""
    FOLDER.mkdir(exist_ok=True)
    with launched() as browser:
        for shot in shots:
            data = reduced(taken(browser, shot, made[shot.page]))
            (FOLDER / f"{shot.name}.png").write_bytes(data)
            print(f"{shot.name}.png {len(data) // 1000} kB")


def main(words: Sequence[str]) -> None:
    """Write all pictures of invented runs, or those of a given run or rehearsal."""
    if words and not Path(words[0], "report.html").exists():
        made = {shot.page: Path(words[0], f"rehearsal-{shot.page}.html") for shot in REHEARSED}
        return write(REHEARSED, made)
    if words:
        return write([Shot("demo", "given")], {"given": Path(words[0], "report.html")})
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # so that commands name runs/..., not a place of this machine
        with watched(Path("runs", "live")) as url:
            return write(SHOTS, {**pages(Path("runs")), "live": url})


if __name__ == "__main__":
    main(sys.argv[1:])
