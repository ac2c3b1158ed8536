"""A run as one self-contained HTML page: verdict first, no network, the same bytes for the same run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from fedscal.core.extras import from_extra
from fedscal.core.files import write_bytes
from fedscal.core.table import Table
from fedscal.experiment.load import load_run

__all__ = ["write_comparison", "write_report", "write_tables"]


def write_report(run_dir: Path, *, out: Path | None = None) -> Path:
    """Write the report of one run, finished or not, and return its path.

    Args:
        run_dir: The run directory.
        out: The page; ``report.html`` in the run directory if not given.

    Raises:
        UsageError: If the directory holds no run, or the drawing libraries are not installed.
    """
    page = _page()
    return _write(out or run_dir / "report.html", page.report_page(load_run(run_dir)))


def write_comparison(run_dirs: Sequence[Path], out: Path, overall: Table | None = None) -> Path:
    """Write one page over several runs, mean and deviation over the seeds, and return its path.

    Args:
        run_dirs: The run directories.
        out: The page.
        overall: A table over all sources, to be shown below those of each source.

    Raises:
        UsageError: If a directory holds no run, or the drawing libraries are not installed.
    """
    page = _page()
    runs = [load_run(path) for path in dict.fromkeys(run_dirs)]  # each run once
    return _write(out, page.comparison_page(runs, overall))


def write_tables(out: Path, title: str, **parts: Any) -> Path:
    """Write a page of tables and figures, and return its path.

    Args:
        out: The page.
        title: Its title.
        parts: Its contents, see ``page.tables_page``.

    Raises:
        UsageError: If the drawing libraries are not installed.
    """
    return _write(out, _page().tables_page(title, **parts))


def _page() -> ModuleType:
    """Import late: a run on a small machine needs neither jinja2 nor matplotlib."""
    with from_extra("report", "a report"):
        from fedscal.report import page
    return page


def _write(path: Path, page: str) -> Path:
    # A lone surrogate (a file name in another encoding) must not stop the report.
    write_bytes(path, page.encode("utf-8", errors="replace"))
    return path
