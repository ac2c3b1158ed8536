"""Pictures of the pages for the documentation: ``python -m tools.screenshots`` writes docs/images/*.png.

The runs are invented (``tools.example_runs``): real ones collapse only by luck. Every picture has at most 256
colours, so that it stays small.
"""

from __future__ import annotations

import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser

from fedscal.report import write_comparison, write_report
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


def taken(browser: Browser, shot: Shot, path: Path) -> bytes:
    """Return a picture of a page."""
    page = new_page(browser, shot.width, shot.scheme)
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


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        os.chdir(folder)  # so that commands name runs/..., not a place of this machine
        made = pages(Path("runs"))
        for shot in SHOTS:
            data = reduced(taken(browser, shot, made[shot.page]))
            (FOLDER / f"{shot.name}.png").write_bytes(data)
            print(f"{shot.name}.png {len(data) // 1000} kB")


if __name__ == "__main__":
    main()
