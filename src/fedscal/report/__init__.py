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
from fedscal.experiment.run_directory import RunDirectory

__all__ = ["write_comparison", "write_report", "write_tables"]


def write_report(run: RunDirectory | Path | str, *, out: Path | str | None = None) -> Path:
    """Write the report of one run, finished or not, as its ``report.html`` or ``out``; return its path."""
    page, path = _page(), run.path if isinstance(run, RunDirectory) else Path(run)
    target = Path(out or path / "report.html")
    return _write(target, page.report_page(load_run(path), place=target.parent))


def write_comparison(run_dirs: Sequence[Path], out: Path, overall: Table | None = None) -> Path:
    """Write one page over several runs, mean and deviation over the seeds, and return its path.

    ``overall`` is a table over all sources, shown below those of each source.
    """
    page = _page()
    runs = [load_run(path) for path in dict.fromkeys(run_dirs)]  # each run once
    return _write(out, page.comparison_page(runs, overall, place=out.parent))


def write_tables(out: Path, **parts: Any) -> Path:
    """Write a page of tables and figures, see ``page.tables_page``, and return its path."""
    return _write(out, _page().tables_page(**parts))


def _page() -> ModuleType:
    """Import late: a run on a small machine needs no jinja2, which may be missing."""
    with from_extra("report", "a report"):
        from fedscal.report import page
    return page


def _write(path: Path, page: str) -> Path:
    # A lone surrogate (a file name in another encoding) must not stop the report.
    write_bytes(path, page.encode("utf-8", errors="replace"))
    return path
