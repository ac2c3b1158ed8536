"""Hyper-parameters declared once, where they are used: a dataclass field with help and bounds.

A term or a server rule is a frozen dataclass; ``option`` declares each of its numbers. A field whose default
is made by another dataclass, ``field(default_factory=Piece)``, adds the options of that piece. The command
line, the recipes and the documentation read the declarations: a new hyper-parameter needs no second place.
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
"""A checked value of an option."""
Keys = Mapping[str, object]
"""Keys of runs as somebody gave them, by words, a recipe or a program: nothing is checked yet."""
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
    weight: bool = False,
    later: bool = False,
) -> Any:
    """Declare a dataclass field as an option.

    Args:
        default: its value if none is given.
        text: one line of help.
        low: inclusive lower bound.
        high: inclusive upper bound.
        above: open lower bound.
        choices: the values that another table lists; others are written as ``Literal``.
        weight: it weights a summand of a loss; a term whose weights are all 0 is left out.
        later: it was added when runs had been recorded; at its default it leaves a run's digest as it was.
    """
    bounds = {"low": low, "high": high, "above": above, "choices": choices}
    return dataclasses.field(
        default=default, metadata={"option": {"text": text, **bounds, "weight": weight, "later": later}}
    )


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
    weight: bool = False
    later: bool = False

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
    """Return the options that a dataclass and its pieces declare."""
    return _declared(cls)


@functools.cache  # to read the hints takes milliseconds, and a grid makes thousands of specs
def _declared(cls: type) -> Mapping[str, Option]:
    hints = typing.get_type_hints(cls)
    declared: dict[str, Option] = {}
    for field in dataclasses.fields(cls):
        if piece := _piece(field):
            declared |= _declared(piece)
        elif "option" in field.metadata:
            declared[field.name] = _option(field, hints[field.name])
    return MappingProxyType(declared)


def _piece(field: dataclasses.Field[Any]) -> type | None:
    """Return the dataclass that a field holds, if it holds one."""
    made: object = field.default_factory
    return made if isinstance(made, type) and dataclasses.is_dataclass(made) else None


def _option(field: dataclasses.Field[Any], hint: Any) -> Option:
    traits = dict(field.metadata["option"])
    if typing.get_origin(hint) is Literal:
        traits["choices"] = typing.get_args(hint)
    choices = traits["choices"]
    kind = str if choices else hint
    return Option(field.name, kind, field.default, **traits)


def as_typed(value: object) -> str:
    """Write a value as the user would type it.

    >>> as_typed(True), as_typed(1.0), as_typed(0.03)
    ('true', '1', '0.03')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def construct(cls: type[T], values: Mapping[str, Value]) -> T:
    """Build a dataclass and its pieces from the values that they declare; others are ignored."""
    given: dict[str, object] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if piece := _piece(field):
            given[field.name] = construct(piece, values)
        elif "option" in field.metadata and field.name in values:
            given[field.name] = values[field.name]
    return cls(**given)
