"""JSON and TOML of others: a value of plain parts, or a ValueError of a few words; never anything else."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscal.core import files
from fedscal.core.documents import parse_json, parse_toml, read_json, sealed, unsealed
from fedscal.experiment.spec import dump_toml

TEXT = st.text(max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda part: st.lists(part, max_size=4) | st.dictionaries(TEXT, part, max_size=4)
)
RECORDS = st.dictionaries(TEXT.filter(lambda key: key != "check"), VALUES, max_size=5).map(
    lambda rest: {"round": 3, **{key: value for key, value in rest.items() if key != "round"}}
)
FRAGMENTS = st.sampled_from(
    [b"[", b"]", b"{", b"}", b'"', b"'", b"=", b".", b",", b":", b"\n", b"\\", b"1", b"a", b"#"]
)


def depth(value: Any) -> int:
    """Return how deep a value is nested."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, parts), default=0)


def largest(value: Any) -> int:
    """Return the bits of the largest whole number in a value."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = value.bit_length() if isinstance(value, int) else 0
    return max(own, *map(largest, parts), 0)


def read_or_refused(parse: Callable[[bytes], Any], data: bytes) -> Any:
    """Return the value, or why there is none; any other exception is a failure."""
    try:
        return parse(data)
    except ValueError as error:
        return str(error)[:500]


@given(VALUES)
def test_what_is_within_bounds_is_read_as_it_is(value: Any) -> None:
    text = json.dumps(value).encode()
    if largest(value) <= 63 and depth(value) <= 32:
        assert parse_json(text) == value
    else:
        with pytest.raises(ValueError, match="it "):
            parse_json(text)


@given(st.binary(max_size=200) | st.lists(FRAGMENTS, max_size=60).map(b"".join))
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    for parse in (parse_json, parse_toml, unsealed):
        value = read_or_refused(parse, data)
        assert depth(value) <= 32
        assert largest(value) <= 63


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), st.integers(-9, 9) | st.booleans() | TEXT)
)
def test_what_a_run_writes_as_toml_is_read_back(keys: dict[str, Any]) -> None:
    assert parse_toml(dump_toml(keys).encode()) == keys


@pytest.mark.parametrize("levels", [31, 32, 33, 500, 100_000])
def test_depth_is_bounded(levels: int) -> None:
    for parse, text in (
        (parse_json, b"[" * levels + b"]" * levels),
        (parse_json, b'{"a":' * levels + b"1" + b"}" * levels),
        (parse_toml, b"a = " + b"[" * (levels - 1) + b"]" * (levels - 1)),
        (parse_toml, b".".join([b"a"] * levels) + b" = 1"),
        (parse_toml, b"[" + b" . ".join([b"'a'"] * levels) + b"]"),
    ):
        started = time.monotonic()
        found = read_or_refused(parse, text)
        assert found == "it is nested more than 32 deep" if levels > 32 else depth(found) <= 33
        assert time.monotonic() - started < 10, "tomllib alone takes minutes"


# -- seals ------------------------------------------------------------------------------------------------


@given(RECORDS)
def test_a_sealed_record_comes_back(record: dict[str, Any]) -> None:
    if largest(record) > 63 or depth(record) > 32:
        return
    assert unsealed(sealed(record)) == record
    assert json.loads(sealed(record)).keys() == {"check", *record}


@pytest.mark.parametrize(
    "step", [9, pytest.param(1, marks=pytest.mark.long)]
)  # 9: each bit of a byte in turn
def test_no_single_flipped_bit_of_a_sealed_record_is_believed(step: int) -> None:
    @settings(max_examples=25)
    @given(RECORDS)
    def check(record: dict[str, Any]) -> None:
        if largest(record) > 63 or depth(record) > 32:
            return
        line = sealed(record)
        for place in range(0, 8 * (len(line) - 1), step):  # the newline at the end is the journal's
            damaged = bytearray(line)
            damaged[place // 8] ^= 1 << place % 8
            with pytest.raises(ValueError):  # noqa: PT011
                unsealed(bytes(damaged))

    check()


def test_a_record_of_an_earlier_version_has_no_seal() -> None:
    assert unsealed(b'{"round": 2, "lr": 0.1}\n') == {"round": 2, "lr": 0.1}
    with pytest.raises(ValueError, match="checksum"):
        unsealed(b'{"lr": 0.1, "round": 2}\n')


# -- files ------------------------------------------------------------------------------------------------


def test_only_regular_files_of_the_allowed_size_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"[1]")
    assert read_json(path) == [1]
    assert files.read_bytes(path, 3) == b"[1]"
    with pytest.raises(OSError, match="too large, more than 2 bytes"):
        files.read_bytes(path, 2)
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            files.read_bytes(odd, 1000)
    with pytest.raises(IsADirectoryError):
        files.read_bytes(tmp_path, 1000)


def test_a_file_of_another_hash_is_not_returned(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"data")
    assert files.read_verified(path, files.sha256(b"data")) == b"data"
    assert files.read_verified(path, files.sha256(b"other")) is None
