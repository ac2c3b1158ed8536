"""The numbers that the paper prints.

``results.csv`` holds the large tables (Office-Home, DomainNet, Office-31, and the supplement's with BMD and
UCon), ``analysis.csv`` the tables of the analysis section, which print averages only, and ``seconds.csv`` the
supplement's cost table. The paper's figures have no numbers.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from importlib import resources
from statistics import fmean

AVERAGE = "average"
"""The target that stands for the mean over the target domains."""
ALL = "all"
"""The source that stands for the mean over the sources."""
SLIP = 0.02
"""A printed average that is farther from the mean of its targets is a slip, not rounding."""
Key = tuple[str, str, str]
"""The key of a number: method, source, target."""


@cache
def accuracies(table: str) -> Mapping[Key, float]:
    """Return the accuracies of a printed table, in its order; empty if the paper prints none."""
    return {
        (row["method"], row["source"], row["target"]): float(row["accuracy"])
        for name in ("results.csv", "analysis.csv")
        for row in _rows(name)
        if row["table"] == table
    }


@cache
def seconds() -> Mapping[str, float]:
    """Return the printed seconds of one round by method."""
    return {row["method"]: float(row["seconds"]) for row in _rows("seconds.csv")}


def recomputed(table: str, method: str, source: str) -> float | None:
    """Return the mean that a printed average should be: over its targets, or over its sources.

    Where a table prints only averages, these are returned.
    """
    printed = accuracies(table)
    if source == ALL:
        sources = dict.fromkeys(s for m, s, _ in printed if m == method and s != ALL)
        parts = [recomputed(table, method, name) for name in sources]
        means = [part for part in parts if part is not None]
        return fmean(means) if means else None
    targets = [value for (m, s, t), value in printed.items() if (m, s) == (method, source) and t != AVERAGE]
    return fmean(targets) if targets else printed.get((method, source, AVERAGE))


def slips(table: str) -> list[str]:
    """Name the printed averages that are not the mean of their parts."""
    sentences = []
    for (method, source, target), value in accuracies(table).items():
        mean = recomputed(table, method, source)
        if target == AVERAGE and mean is not None and abs(value - mean) > SLIP:
            sentences.append(
                f"{table}, {method} from {source}: the printed average is {value:.2f}, the mean of its "
                f"parts {mean:.2f}, which is used here."
            )
    return sentences


@cache
def _rows(name: str) -> list[dict[str, str]]:
    text = (resources.files("fedscal.paper") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
