"""Hyper-parameters declared once, where they are used: a dataclass field with help and bounds.

A term or a server rule is a frozen dataclass; ``option`` declares each of its numbers. The command
line, the recipes and the documentation read the declarations, so a new hyper-parameter needs no
second place.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from fedscal.core.errors import UsageError, nearest, shown

Value = bool | int | float | str
T = TypeVar("T")
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def option(
    default: Any,
    text: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare a dataclass field: default, one line of help, inclusive bounds or an open lower one.

    ``choices`` are for those that another table lists; others are written as ``Literal``.
    """
    bounds = {"low": low, "high": high, "above": above, "choices": choices}
    return dataclasses.field(default=default, metadata={"help": text, **bounds})


@dataclass(frozen=True)
class Option:
    """One named, typed and bounded setting."""

    name: str
    kind: type
    default: Any
    text: str
    low: float | None = None
    high: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()

    def parse(self, given: Any) -> Value:
        """Return ``given``, text or a typed value, as a checked value of this option's kind."""
        value = self._convert(given)
        named = f"{self.name}={shown(value)}"
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{named}: needs a finite number")
        if self.choices and value not in self.choices:
            raise UsageError(f"{named}: no such choice{nearest(str(value), self.choices)}")
        if self.above is not None and not value > self.above:  # type: ignore[operator]
            raise UsageError(f"{named} is too small: more than {self.above:g}")
        if self.low is not None and not value >= self.low:  # type: ignore[operator]
            raise UsageError(f"{named} is too small: at least {self.low:g}")
        if self.high is not None and not value <= self.high:  # type: ignore[operator]
            raise UsageError(f"{named} is too large: at most {self.high:g}")
        return value

    def _convert(self, given: Any) -> Value:
        try:
            if self.kind is bool:
                return given if isinstance(given, bool) else _WORDS[str(given).lower()]
            if isinstance(given, bool):
                raise ValueError
            if self.kind is int and isinstance(given, float) and not given.is_integer():
                raise ValueError
            return typing.cast(Value, self.kind(given))
        except (ValueError, KeyError, TypeError, OverflowError):
            wanted = {bool: "true or false", int: "a whole number", float: "a number"}.get(self.kind, "text")
            raise UsageError(f"{self.name}={shown(given)}: needs {wanted}") from None


def options_of(cls: type) -> Mapping[str, Option]:
    """Return the options that a dataclass declares."""
    return _declared(cls)


@functools.cache  # to read the hints takes milliseconds, and a grid makes thousands of specs
def _declared(cls: type) -> Mapping[str, Option]:
    hints = typing.get_type_hints(cls)
    found = {
        field.name: _option(field, hints[field.name])
        for field in dataclasses.fields(cls)
        if "help" in field.metadata
    }
    return MappingProxyType(found)


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    meta = field.metadata
    choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else meta["choices"]
    kind = str if choices else hint
    bounds = (meta["low"], meta["high"], meta["above"])
    return Option(field.name, kind, field.default, meta["help"], *bounds, choices)


def as_typed(value: Any) -> str:
    """Write a value as the user would type it.

    >>> as_typed(True), as_typed(1.0), as_typed(0.03)
    ('true', '1', '0.03')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def construct(cls: type[T], values: Mapping[str, Value]) -> T:
    """Build a dataclass from the values that it declares; the others are not its business."""
    return cls(**{name: values[name] for name in options_of(cls) if name in values})
