"""How numbers are written for a reader; an unknown value is a dash."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from fedscal.core.options import as_typed

UNKNOWN = "—"
MINUS = "\N{MINUS SIGN}"  # as wide as the plus


def decimals(value: float, places: int = 2) -> str:
    """Write a number with a fixed number of decimals.

    >>> decimals(1.239), decimals(math.nan)
    ('1.24', '—')
    """
    return f"{value:.{places}f}" if math.isfinite(value) else UNKNOWN


def percent(value: float) -> str:
    """Write an accuracy.

    >>> percent(92.77)
    '92.8 %'
    """
    return f"{value:.1f} %" if math.isfinite(value) else UNKNOWN


def signed(value: float) -> str:
    """Write a change with its sign, and no sign at zero.

    >>> signed(2.04), signed(-0.04)
    ('+2.0', '0.0')
    """
    if not math.isfinite(value):
        return UNKNOWN
    tenth = round(value, 1)
    return f"{tenth:+.1f}".replace("-", MINUS) if tenth else "0.0"


def spread(values: Sequence[float]) -> str:
    """Write the mean of some percentages, and the sample standard deviation if there are two or more.

    >>> spread([90.0, 92.0]), spread([90.0])
    ('91.0 ± 1.4', '90.0')
    """
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return UNKNOWN
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return f"{mean:.1f}"
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1))
    return f"{mean:.1f} ± {deviation:.1f}"


def duration(seconds: float) -> str:
    """Write a time span.

    >>> duration(40.23), duration(725), duration(7380)
    ('40.2 s', '12 min 5 s', '2 h 3 min')
    """
    if not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(count: float) -> str:
    """Write a number of bytes.

    >>> size(512), size(1_234_000)
    ('512 B', '1.2 MB')
    """
    if not math.isfinite(count):
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def spans(numbers: Iterable[int]) -> str:
    """Write whole numbers with runs drawn together.

    >>> spans([1, 2, 3, 7])
    '1-3, 7'
    """
    runs: list[list[int]] = []
    for value in sorted(set(numbers)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


def count(amount: int, noun: str) -> str:
    """Write an amount with its noun.

    >>> count(1, "warning"), count(2, "warning")
    ('1 warning', '2 warnings')
    """
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def plain(value: Any) -> str:
    """Write a configuration value, or a list of them, as the user would type it."""
    return ", ".join(map(plain, value)) if isinstance(value, list | tuple) else as_typed(value)
