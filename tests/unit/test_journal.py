"""The record of a run: every line whole and in its place, or it ends there and says why."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.documents import sealed
from fedscal.core.errors import ModelRefused
from fedscal.experiment.journal import Journal
from fedscal.experiment.records import RoundRecord, Seconds


def record_of(index: int) -> RoundRecord:
    return RoundRecord(
        round=index,
        participants=("é",),
        signals={"entropy": 50.5 + index},
        clients={},
        warnings=(),
        failures={},
        seconds=Seconds(adapt=1.0, evaluate=0.5),
        selected_round=0,
    )


ROUNDS = [record_of(index) for index in range(4)]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "metrics.jsonl")
    made.restart([sealed(dump(ROUNDS[0]))])
    for one in ROUNDS[1:]:
        made.append(one)
    return made


def test_what_is_appended_is_read_and_hashed_line_by_line(journal: Journal) -> None:
    record = journal.read()
    raw = journal.path.read_bytes().splitlines(keepends=True)
    assert (record.rounds, record.lines, record.trouble) == (ROUNDS, raw, "")
    hashes = [record.sha256(count) for count in range(5)]
    assert hashes == [files.sha256(b"".join(raw[:count])) for count in range(5)]
    assert journal.sha256 == hashes[-1]


@pytest.mark.parametrize(
    "step", [9, pytest.param(1, marks=pytest.mark.long)]
)  # 9: each bit of a byte in turn
def test_every_flipped_bit_ends_the_record_before_it(journal: Journal, step: int) -> None:
    whole = journal.path.read_bytes()
    for place in range(0, 8 * len(whole), step):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        journal.path.write_bytes(damaged)
        record = journal.read()
        line = whole[: place // 8].count(b"\n")
        assert record.rounds == ROUNDS[:line], place
        assert f"line {line + 1} is" in record.trouble, place


@pytest.mark.parametrize("kept", range(5))
def test_a_cut_ends_the_record_after_the_last_whole_line(journal: Journal, kept: int) -> None:
    raw = journal.path.read_bytes().splitlines(keepends=True)
    for size in {0, 1, len(raw[kept]) // 2, len(raw[kept]) - 1} if kept < 4 else {0}:
        journal.path.write_bytes(b"".join(raw[:kept]) + (raw[kept][:size] if size else b""))
        record = journal.read()
        assert record.rounds == ROUNDS[:kept]
        assert record.trouble == (f"line {kept + 1} is damaged, it is cut off" if size else "")


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (0, 2, 3), (0, 1, 1, 2)])
def test_lines_out_of_their_order_end_the_record(journal: Journal, order: tuple[int, ...]) -> None:
    raw = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join(raw[index] for index in order))
    record = journal.read()
    assert len(record.lines) < len(order)
    assert "it is of round" in record.trouble


def test_lines_of_an_earlier_version_are_read_and_sealed_when_written_again(journal: Journal) -> None:
    journal.path.write_text("".join(json.dumps(dump(one)) + "\n" for one in ROUNDS))
    record = journal.read()
    assert record.rounds == ROUNDS
    journal.restart(record.lines)
    assert journal.sha256 == record.sha256(len(record.lines)) == files.sha256(journal.path.read_bytes())
    assert journal.path.read_bytes().count(b'{"check": ') == 4


def test_a_round_is_allowed_only_after_the_lines_that_it_was_saved_with(journal: Journal) -> None:
    record = journal.read()
    for count in range(5):
        record.require(count, record.sha256(count))
        record.require(count, "")  # saved by an earlier version, which did not say
    with pytest.raises(ModelRefused, match="line 5 is missing"):
        record.require(5, "")
    with pytest.raises(ModelRefused, match="is not what it was when a round was saved after line 2"):
        record.require(2, record.sha256(3))


def test_what_other_versions_add_stays_as_it_is(journal: Journal) -> None:
    newer = sealed({**dump(record_of(4)), "later": [1.0, {"x": None}], "lr": 1e-1})
    with journal.path.open("ab") as file:
        file.write(newer.replace(b"0.1", b"1e-1").replace(newer[11:19], seal_of(newer)))
    raw = journal.path.read_bytes()
    record = journal.read()
    assert (len(record.rounds), record.trouble) == (5, "")
    assert record.sha256(len(record.lines)) == files.sha256(raw), (
        "of the bytes, however another program writes numbers"
    )
    journal.restart(record.lines)
    assert journal.path.read_bytes() == raw


def seal_of(line: bytes) -> bytes:
    """Return the checksum of a line whose learning rate is written in another way."""
    body = b"{" + line.replace(b"0.1", b"1e-1").removesuffix(b"\n")[len(b'{"check": "00000000", ') :]
    return b"%08x" % zlib.crc32(body)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"signals": {"entropy": "high"}}, "signals.entropy is no number"),
        ({"clients": {"a": {"images": 3}}}, "clients.a has no domain"),
        ({"seconds": {}}, "seconds has no adapt"),
        ({"selected_round": None}, "it has no selected_round"),
        ({"warnings": [3]}, "warnings[0] is no text"),
    ],
)
def test_a_line_of_another_shape_is_no_line(journal: Journal, change: dict[str, Any], said: str) -> None:
    with journal.path.open("ab") as file:
        file.write(sealed({**dump(record_of(4)), **change}))
    record = journal.read()
    assert len(record.rounds) == 4
    assert record.trouble == f"line 5 is damaged, {said}"
    notes: list[str] = []
    assert len(journal.salvage(notes)) == 5, "a report shows the rest of it"
    assert notes == [] or said in notes[0]


def test_a_report_reads_what_a_run_would_refuse_and_notes_the_rest(journal: Journal) -> None:
    raw = journal.path.read_bytes().splitlines(keepends=True)
    journal.path.write_bytes(b"".join([raw[3], b"{]\n", raw[0], raw[0], raw[1][:40]]))
    notes: list[str] = []
    assert journal.salvage(notes) == [ROUNDS[0], ROUNDS[3]]
    assert notes == [f"metrics.jsonl, line {n}: not a whole record, left out." for n in (2, 5)]


def test_a_record_that_is_gone_is_empty_and_says_so(tmp_path: Path) -> None:
    record = Journal(tmp_path / "none.jsonl").read()
    assert (record.rounds, record.trouble) == ([], "it is gone")
