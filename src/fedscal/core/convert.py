"""Frozen dataclasses as JSON and back: a field's name and annotation say what stands in the file.

Annotations may be ``str``, ``int``, ``float``, ``bool``, ``object`` (anything), another dataclass,
``X | None``, ``Mapping[str, X]``, ``Sequence[X]`` and tuples of these. A field that is equal to its default
is not written. A field without a default must be in the file, unless it may be None.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from fedscal.core.errors import shown

T = TypeVar("T")
Faults = list[str] | None
"""Where a lenient reader notes what it left out; None: the reader is strict."""
_Reader = Callable[[Any, str, Faults], Any]
_SCALARS = {str: "text", int: "whole number", float: "number", bool: "yes or no", type(None): "null"}
_BLANK = {str: "", float: math.nan}
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


def convert(value: Any, kind: type[T], name: str = "it", faults: Faults = None) -> T:
    """Return a value of JSON as a typed one.

    Args:
        value: the value.
        kind: an annotation, see above.
        name: what an error calls the value.
        faults: makes the reader lenient: parts of a wrong kind are left out and noted here.

    Raises:
        ValueError: What is wrong and where; of a lenient reader: if nothing can stand for it.

    >>> convert([3, "x"], Sequence[int])
    Traceback (most recent call last):
    ValueError: it[1] is no whole number
    """
    made: T = _reader(typing.cast(Any, kind))(value, name, faults)
    return made


@cache
def _reader(hint: Any) -> _Reader:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint):
        return _table(typing.cast(type, hint))
    if origin in (typing.Union, types.UnionType):
        return _either([_reader(one) for one in inner])
    if origin in (Mapping, dict):
        return _mapping(_reader(inner[1]))
    if origin is Sequence or inner[1:] == (...,):
        return _sequence(_reader(inner[0]))
    if origin is tuple:
        return _fixed([_reader(one) for one in inner])
    return _scalar(hint)


def _scalar(kind: type) -> _Reader:
    def read(value: Any, name: str, faults: Faults) -> Any:
        fits = isinstance(value, int | float if kind is float else kind)
        if not fits or (isinstance(value, bool) and kind in (int, float)):
            raise ValueError(f"{name} is no {_SCALARS[kind]}")
        if faults is not None and isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is not finite")
        return value

    return read


def _either(readers: Sequence[_Reader]) -> _Reader:
    """Read by the first that can; the others' errors would only repeat its own."""

    def read(value: Any, name: str, faults: Faults) -> Any:
        errors = []
        for one in readers:
            try:
                return one(value, name, faults)
            except ValueError as error:
                errors.append(error)
        raise errors[0]

    return read


def _mapping(entry: _Reader) -> _Reader:
    def read(value: Any, name: str, faults: Faults) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is no table")
        parts = ((key, _part(entry, one, _below(name, key), faults)) for key, one in value.items())
        return {key: part for key, part in parts if part is not MISSING}

    return read


def _sequence(entry: _Reader) -> _Reader:
    def read(value: Any, name: str, faults: Faults) -> Any:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name} is no list")
        parts = (_part(entry, one, f"{name}[{at}]", faults) for at, one in enumerate(value))
        return tuple(part for part in parts if part is not MISSING)

    return read


def _fixed(readers: Sequence[_Reader]) -> _Reader:
    def read(value: Any, name: str, faults: Faults) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(readers):
            raise ValueError(f"{name} is no list of {len(readers)}")
        return tuple(
            one(part, f"{name}[{at}]", faults)
            for at, (one, part) in enumerate(zip(readers, value, strict=True))
        )

    return read


def _part(read: _Reader, value: Any, name: str, faults: Faults) -> Any:
    """Read an entry; MISSING if it is to be left out."""
    try:
        return read(value, name, faults)
    except ValueError as error:
        if faults is None:
            raise
        faults.append(str(error))
        return MISSING


def _table(kind: type) -> _Reader:
    hints = typing.get_type_hints(kind)
    plan = [(one, hints[one.name], _reader(hints[one.name])) for one in fields(kind)]
    names = {one.name for one, _, _ in plan if _REST not in one.metadata}

    def read(value: Any, name: str, faults: Faults) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is no table")
        given: dict[str, Any] = {}
        for one, hint, reader in plan:
            part: Any = MISSING
            if _REST in one.metadata:
                others = {key: value[key] for key in value if key not in names}
                part = reader(others, name, faults if one.metadata[_REST] else [])
            elif one.name in value:
                part = _part(reader, value[one.name], _below(name, one.name), faults)
            if part is MISSING and one.default is one.default_factory is MISSING:
                part = _blank(hint, _below(name, one.name), f"{name} has no {one.name}", faults)
            if part is not MISSING:
                given[one.name] = part
        return kind(**given)

    return read


def _blank(hint: Any, name: str, missing: str, faults: Faults) -> Any:
    """Return what stands for a field that is not there."""
    origin = typing.get_origin(hint)
    if type(None) in typing.get_args(hint):
        return None
    if faults is not None and is_dataclass(hint):
        return _reader(typing.cast(Any, hint))({}, name, faults)
    if faults is not None and (hint in _BLANK or origin in (Mapping, Sequence)):
        return _BLANK.get(hint, {} if origin is Mapping else ())
    raise ValueError(missing)


def _below(name: str, key: str) -> str:
    return shown(key) if name == "it" else f"{name}.{shown(key)}"
