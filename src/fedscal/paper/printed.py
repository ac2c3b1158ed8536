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
OURS = "FedSCAl"
"""The row of the paper's own method."""
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


def exceptions(table: str) -> tuple[int, list[str]]:
    """Return how many targets a table prints for FedSCAl, and name those where another method is higher."""
    by_cell: dict[tuple[str, str], dict[str, float]] = {}
    for (method, source, target), value in accuracies(table).items():
        if target != AVERAGE:
            by_cell.setdefault((source, target), {})[method] = value
    cells = {cell: values for cell, values in by_cell.items() if OURS in values}
    return len(cells), [
        f"{source} to {target} ({', '.join(f'{method} {values[method]:.2f}' for method in (*above, OURS))})"
        for (source, target), values in cells.items()
        if (above := [method for method in values if values[method] > values[OURS]])
    ]


def exceptions_told(table: str) -> list[str]:
    """Say where the paper's own numbers break its claim that FedSCAl is above all other methods."""
    cells, found = exceptions(table)
    if not found:
        return []
    return [
        f"{table}: in {len(found)} of {cells} targets the paper's own numbers have another method above "
        f"{OURS}: {'; '.join(found)}."
    ]


@cache
def _rows(name: str) -> list[dict[str, str]]:
    text = (resources.files("fedscal.paper") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
