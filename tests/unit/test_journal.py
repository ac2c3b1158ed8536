"""The record of a run: every line whole and in its place, or it ends there and says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedscal.core import files
from fedscal.core.errors import ModelRefused
from fedscal.experiment.journal import Journal

LINES: list[dict[str, Any]] = [{"round": index, "accuracy": 50.5 + index, "name": "é"} for index in range(4)]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "metrics.jsonl", {"round": int, "accuracy": float})
    made.restart(LINES[:1])
    for line in LINES[1:]:
        made.append(line)
    return made


def test_what_is_appended_is_read_and_hashed_line_by_line(journal: Journal) -> None:
    record = journal.read()
    raw = journal.path.read_bytes().splitlines(keepends=True)
    assert (record.lines, record.trouble) == (LINES, "")
    assert record.hashes == [files.sha256(b"".join(raw[: count + 1])) for count in range(4)]
    assert journal.sha256 == record.hashes[-1]


def test_every_flipped_bit_ends_the_record_before_it(journal: Journal) -> None:
    whole = journal.path.read_bytes()
    for place in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        journal.path.write_bytes(damaged)
        record = journal.read()
        line = whole[: place // 8].count(b"\n")
        assert record.lines == LINES[:line], place
        assert f"line {line + 1} is" in record.trouble, place


@pytest.mark.parametrize("kept", range(5))
def test_a_cut_ends_the_record_after_the_last_whole_line(journal: Journal, kept: int) -> None:
    raw = journal.path.read_bytes().splitlines(keepends=True)
    for size in {0, 1, len(raw[kept]) // 2, len(raw[kept]) - 1} if kept < 4 else {0}:
        journal.path.write_bytes(b"".join(raw[:kept]) + (raw[kept][:size] if size else b""))
        record = journal.read()
        assert record.lines == LINES[:kept]
        assert record.trouble == (f"line {kept + 1} is damaged, it is cut off" if size else "")


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 2, 3), (0, 1, 1, 2)])
def test_lines_out_of_their_order_end_the_record(journal: Journal, order: tuple[int, ...]) -> None:
    raw = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(raw[index] for index in order))
    record = journal.read()
    assert len(record.lines) < len(order)
    assert "it is of round" in record.trouble


def test_lines_of_an_earlier_version_are_read_and_sealed_when_written_again(journal: Journal) -> None:
    journal.path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    record = journal.read()
    assert record.lines == LINES
    journal.restart(record.lines)
    assert journal.sha256 == record.hashes[-1] == files.sha256(journal.path.read_bytes())
    assert journal.path.read_bytes().count(b'{"check": ') == 4


def test_a_round_is_allowed_only_after_the_lines_that_it_was_saved_with(journal: Journal) -> None:
    record = journal.read()
    for index in range(4):
        record.require(index, record.hashes[index])
        record.require(index, "")  # saved by an earlier version, which did not say
    with pytest.raises(ModelRefused, match="line 5 is missing"):
        record.require(4, "")
    with pytest.raises(ModelRefused, match="is not what it was when round 2 was saved"):
        record.require(2, record.hashes[3])


def test_a_line_of_another_shape_is_no_line(journal: Journal) -> None:
    journal.append({"round": 4, "accuracy": "high"})
    record = journal.read()
    assert len(record.lines) == 4
    assert record.trouble == "line 5 is damaged, accuracy is no number"


def test_a_record_that_is_gone_is_empty_and_says_so(tmp_path: Path) -> None:
    record = Journal(tmp_path / "none.jsonl", {}).read()
    assert (record.lines, record.trouble) == ([], "it is gone")
