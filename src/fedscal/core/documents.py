"""JSON and TOML that anybody may have written: bounded in size and depth, and made of plain values only.

Whatever is wrong with a document is a ValueError, and with its file an OSError, each of a few words.
"""

from __future__ import annotations

import json
import re
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedscal.core.convert import convert
from fedscal.core.errors import shown
from fedscal.core.files import read_bytes

LARGEST = 64_000_000
"""Bytes of a JSON file: the manifest of 100,000 clients' memories has 12 million."""
_LARGEST_TOML = 1_000_000
_DEEPEST = 32
_TOO_DEEP = f"it is nested more than {_DEEPEST} deep"
_WIDEST = 63
"""Bits of a whole number: what other programs can hold, and a float can take without an error."""
_TOO_WIDE = f"it has a whole number of more than {_WIDEST} bits"
_WORD = r"""(?:(?<![\w-])[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_CHAIN = re.compile(rf"{_WORD}(?:[ \t]*+\.[ \t]*+{_WORD}){{{_DEEPEST}}}")
"""A dotted key of so many parts, on which tomllib spends the square of their number."""
_SEAL = b'{"check": "%08x", '
T = TypeVar("T")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file."""
    return parse_json(read_bytes(path, LARGEST))


def read_record(path: Path, kind: type[T]) -> T:
    """Return a JSON file as a dataclass, see ``convert``."""
    return convert(read_json(path), kind)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the table of a TOML file."""
    return parse_toml(read_bytes(path, _LARGEST_TOML))


def parse_json(data: bytes) -> Any:
    """Return the value of JSON text."""
    return _parsed(json.loads, data.decode("utf-8-sig"))


def parse_toml(data: bytes) -> dict[str, Any]:
    """Return the table of TOML text."""
    text = data.decode("utf-8-sig")
    if _CHAIN.search(text):
        raise ValueError(_TOO_DEEP)
    return _parsed(tomllib.loads, text)


def sealed(value: Mapping[str, object]) -> bytes:
    r"""Write a record as one line of JSON whose first field is a checksum of the others.

    >>> sealed({"round": 1})
    b'{"check": "d9f40321", "round": 1}\n'
    """
    body = json.dumps(value, ensure_ascii=False).encode()
    return _SEAL % zlib.crc32(body) + body[1:] + b"\n"


def is_sealed(line: bytes) -> bool:
    """Whether a record has a checksum; those of earlier versions have none and begin with their round."""
    return line.startswith(_SEAL[: _SEAL.index(b"%")])


def unsealed(line: bytes) -> dict[str, Any]:
    """Return a record without its checksum, which must be right.

    Records of earlier versions have none and begin with their round: no single damage makes one of the other.
    """
    value = parse_json(line)
    if not isinstance(value, dict) or not isinstance(value.get("round"), int):
        raise ValueError("it is no record of a round")
    if next(iter(value)) != "round":
        body = b"{" + line.removesuffix(b"\n")[len(_SEAL % 0) :]
        if not line.startswith(_SEAL % zlib.crc32(body)):
            raise ValueError("its checksum is wrong")
        del value["check"]
    return value


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        value = parse(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(shown(error)) from None
    except ValueError:  # Python does not read numbers of thousands of digits
        raise ValueError(_TOO_WIDE) from None
    level = [value]
    for _ in range(_DEEPEST):
        level = [part for one in level for part in _parts(one)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def _parts(value: Any) -> Iterator[Any]:
    """Yield what a value is made of; refuse numbers that others cannot hold."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
    elif isinstance(value, int) and value.bit_length() > _WIDEST:
        raise ValueError(_TOO_WIDE)
