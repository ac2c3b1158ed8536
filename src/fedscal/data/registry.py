"""The table of benchmarks: a new data set is one file and one row here."""

from __future__ import annotations

from fedscal.data.benchmark import Benchmark
from fedscal.data.digits import DIGITS
from fedscal.data.icons.rows import ICONS, ICONS_64
from fedscal.errors import UsageError, nearest

BENCHMARKS: dict[str, Benchmark] = {row.name: row for row in (DIGITS, ICONS, ICONS_64)}


def benchmark(name: str) -> Benchmark:
    """Return the benchmark of this name, or say which name was probably meant."""
    if name not in BENCHMARKS:
        raise UsageError(f"unknown benchmark '{name}'{nearest(name, BENCHMARKS)}")
    return BENCHMARKS[name]
