"""Frozen dataclasses as JSON and back: a field's name and annotation say what stands in the file.

Annotations may be ``str``, ``int``, ``float``, ``bool``, ``object`` (anything), another dataclass,
``Literal``, ``X | None``, ``Mapping[str, X]``, ``Sequence[X]`` and tuples of these. A field that is equal to
its default is not written. A field without a default must be in the file, unless it may be None.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from fedscal.core.errors import shown, some

T = TypeVar("T")
_SCALARS = {str: "text", int: "whole number", float: "number", bool: "yes or no", type(None): "null"}
_BLANK: dict[Any, Any] = {str: "", float: math.nan, dict: {}, tuple: ()}
_REST = "rest"


def rest(strict: bool = True) -> Any:
    """Declare a mapping that takes the names of a table that no other field has.

    Args:
        strict: refuse a value of a wrong kind; else it is passed over.
    """
    return field(default_factory=dict, metadata={_REST: strict})


def dump(record: Any) -> dict[str, Any]:
    """Return a dataclass as a JSON object."""
    made: dict[str, Any] = {}
    for one in fields(record):
        value = getattr(record, one.name)
        if _REST in one.metadata:
            made |= _plain(value)
        elif not _is_default(one, value):
            made[one.name] = _plain(value)
    return made


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return dump(value)
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value


def _is_default(one: Field[Any], value: Any) -> bool:
    default = one.default_factory() if one.default_factory is not MISSING else one.default
    return value is default or bool(value == default)  # NaN is equal to nothing, but the same object


class Misfit(ValueError):
    """A value that has not the form of its annotation, and where it is."""

    def __init__(self, what: str, place: tuple[str | int, ...] = ()) -> None:
        self.what, self.place = what, place
        named = "".join(f"[{key}]" if isinstance(key, int) else f".{shown(key)}" for key in place)
        super().__init__(f"{named.removeprefix('.') or 'it'} {what}")

    def below(self, key: str | int) -> Misfit:
        """Return the same, seen from the value that this one is a part of."""
        return Misfit(self.what, (key, *self.place))


Faults = list[Misfit] | None
"""Where a lenient reader notes what it left out; None: the reader is strict."""


def in_short(faults: Sequence[Misfit]) -> str:
    """Name the first faults."""
    return some(list(map(str, faults)), 3, "; ")


def convert(value: Any, kind: type[T], faults: Faults = None) -> T:
    """Return a value of JSON as a typed one.

    Args:
        value: the value.
        kind: an annotation, see above.
        faults: makes the reader lenient: parts of a wrong kind are left out and noted here.

    Raises:
        ValueError: What is wrong and where; of a lenient reader: if nothing can stand for it.

    >>> convert([3, "x"], tuple[int, ...])
    Traceback (most recent call last):
    fedscal.core.convert.Misfit: [1] is no whole number
    """
    made: T = _read(kind, value, faults)
    return made


def _read(hint: Any, value: Any, faults: Faults) -> Any:
    origin, inner = _form(hint)
    if origin is dict and isinstance(value, Mapping):
        return _parts(value, dict.fromkeys(value, inner[1]), faults)
    if origin is tuple and isinstance(value, list | tuple):
        if inner[1:] in ((), (...,)):
            return tuple(_parts(value, dict.fromkeys(range(len(value)), inner[0]), faults).values())
        if len(inner) != len(value):
            raise Misfit(f"is no list of {len(inner)}")
        return tuple(_parts(value, dict(enumerate(inner)), None).values())
    if origin is types.UnionType:
        return _either(inner, value, faults)
    if origin is typing.Literal:
        if value not in inner:
            raise Misfit(f"is none of {', '.join(map(str, inner))}")
        return value
    if is_dataclass(hint) and isinstance(value, Mapping):
        return _table(typing.cast(type, hint), value, faults)
    return value if hint is object else _scalar(hint, origin, value, faults)


@cache
def _form(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what an annotation is made of; every mapping is a dict, every sequence a tuple."""
    origin = typing.get_origin(hint)
    alike = {Mapping: dict, Sequence: tuple, typing.Union: types.UnionType}
    return alike.get(origin, origin), typing.get_args(hint)


def _scalar(hint: Any, origin: Any, value: Any, faults: Faults) -> Any:
    if hint not in _SCALARS:
        raise Misfit("is no list" if origin is tuple else "is no table")
    fits = isinstance(value, int | float if hint is float else hint)
    if not fits or (isinstance(value, bool) and hint is not bool):
        raise Misfit(f"is no {_SCALARS[hint]}")
    if faults is not None and isinstance(value, float) and not math.isfinite(value):
        raise Misfit("is not finite")
    return value


def _either(hints: Sequence[Any], value: Any, faults: Faults) -> Any:
    """Read as the first that fits; the others' errors would only repeat its own."""
    errors = []
    for hint in hints:
        try:
            return _read(hint, value, faults)
        except ValueError as error:
            errors.append(error)
    raise errors[0]


def _parts(value: Any, hints: Mapping[Any, Any], faults: Faults) -> dict[Any, Any]:
    """Return the parts of a value that hints are given for; a lenient reader leaves wrong ones out."""
    made = {}
    for key, hint in hints.items():
        inner: Faults = None if faults is None else []
        try:
            made[key] = _read(hint, value[key], inner)
        except Misfit as error:
            if inner is None:
                raise error.below(key) from None
            inner.append(error)
        if faults is not None and inner:
            faults += [error.below(key) for error in inner]
    return made


def _table(kind: type, value: Mapping[str, Any], faults: Faults) -> Any:
    hints, declared = _declared(kind)
    given = _parts(value, {name: hints[name] for name in declared if name in value}, faults)
    for one in fields(kind):
        if _REST in one.metadata:
            others = {key: part for key, part in value.items() if key not in declared}
            given[one.name] = _read(hints[one.name], others, faults if one.metadata[_REST] else [])
        elif one.name not in given and one.default is one.default_factory is MISSING:
            given[one.name] = _blank(hints[one.name], one.name, faults)
    return kind(**given)


@cache
def _declared(kind: type) -> tuple[Mapping[str, object], Sequence[str]]:
    return typing.get_type_hints(kind), [one.name for one in fields(kind) if _REST not in one.metadata]


def _blank(hint: Any, name: str, faults: Faults) -> Any:
    """Return what stands for a field that is not there."""
    origin, inner = _form(hint)
    if type(None) in inner:
        return None
    if faults is not None and is_dataclass(hint):
        return _table(typing.cast(type, hint), {}, faults)
    if faults is None or (origin or hint) not in _BLANK:
        raise Misfit(f"has no {name}")
    return _BLANK[origin or hint]
