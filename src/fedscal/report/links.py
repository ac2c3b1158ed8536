"""Where the pages of runs and comparisons are, seen from one another."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

REPORT, COMPARISON = "report.html", "comparison.html"
_ABOVE = 2
"""A comparison's runs lie in its folder, or in a folder of it."""


def report_link(run: Path, page: Path) -> str:
    """Return the address of a run's report, seen from the folder of a page; empty if there is none."""
    return _link(run / REPORT, page)


def comparison_link(run: Path, page: Path) -> str:
    """Return the address of the comparison above a run, if there is one."""
    above = list(Path(os.path.abspath(run)).parents)[:_ABOVE]
    return next(filter(None, (_link(folder / COMPARISON, page) for folder in above)), "")


def _link(target: Path, page: Path) -> str:
    """Return a relative address: pages are moved together. Every sign of a name is only a sign of a name."""
    if not target.is_file():
        return ""
    try:
        return quote(os.fsencode(os.path.relpath(target, page)))
    except ValueError:  # on another drive
        return ""
