"""What a value from elsewhere must be. A field says what is wrong with a value; it never raises.

Texts begin where a name ends, so that they can be put together: ``epochs[0].loss is nan, not ...``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedscal.core.errors import shown

Field = Callable[[Any], str | None]
"""Says what is wrong with a value, or None."""
_LONGEST_VALUE = 80


def quoted(value: Any) -> str:
    """Return a value as Python writes it, so that a text can be told from a number."""
    return shown(repr(value), _LONGEST_VALUE)


def printable(text: str, most: int = 300) -> str:
    r"""Return a text of somebody else as it can be shown: at most so long, without control characters.

    >>> printable("sorry\nfedscal ended with code 4")
    'sorry fedscal ended with code 4'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text[:most])


def field(holds: Callable[[Any], bool], words: str) -> Field:
    """Return the field of the values for which ``holds`` is true; ``words`` say what they are."""
    return lambda value: None if holds(value) else f" is {quoted(value)}, not {words}"


def just(known: Any) -> Field:
    """Return the field of one value."""

    def fault(value: Any) -> str | None:
        same = type(value) is type(known) and value == known
        return None if same else f" is {quoted(value)}, not {quoted(known)}"

    return fault


def whole(low: int, high: int) -> Field:
    """Return the field of the whole numbers in a range."""
    return field(
        lambda value: _is_number(value, int) and low <= value <= high,
        f"a whole number from {low:,} to {high:,}",
    )


def real(low: float, high: float) -> Field:
    """Return the field of the numbers in a range; NaN is in none."""
    return field(
        lambda value: _is_number(value, int | float) and bool(low <= value <= high),
        f"a number from {low:,g} to {high:,g}",
    )


def _is_number(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def several(entry: Field, count: int) -> Field:
    """Return the field of lists of so many entries."""

    def fault(value: Any) -> str | None:
        if not isinstance(value, list | tuple) or len(value) != count:
            return f" is {quoted(value)}, not a list of {count}"
        found = (f"[{n}]{wrong}" for n, one in enumerate(value) if (wrong := entry(one)))
        return next(found, None)

    return fault


def record(must: Mapping[str, Field], may: Mapping[str, Field] | None = None) -> Field:
    """Return the field of mappings that have all names in ``must``, some of ``may`` and no other."""
    entries = {**must, **(may or {})}

    def fault(value: Any) -> str | None:
        if not isinstance(value, Mapping):
            return f" is {quoted(value)}, not named values"
        for name in value:
            if name not in entries:
                return f" has {quoted(name)}, which is not on the list"
        for name in must:
            if name not in value:
                return f" has no '{name}'"
        return next((f".{name}{wrong}" for name in value if (wrong := entries[name](value[name]))), None)

    return fault


def numbers(entry: Field) -> Field:
    """Return the field of mappings from any names to numbers."""

    def fault(value: Any) -> str | None:
        names = value if isinstance(value, Mapping) else {}
        return record(dict.fromkeys(names, entry))(value)

    return fault
