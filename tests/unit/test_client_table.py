"""The clients of a round as columns: nothing is lost, and nothing but them is read."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedscal.core.convert import dump
from fedscal.core.documents import sealed
from fedscal.core.errors import ModelRefused
from fedscal.experiment import client_table
from fedscal.experiment.client_table import (
    MANY,
    ClientTable,
    column,
    domains_of,
    gathered,
    last_epoch,
)
from fedscal.experiment.journal import CLIENTS, Journal
from fedscal.experiment.records import ClientRecord, RoundRecord, Seconds

JUDGED = ClientRecord(
    domain="é",
    accuracy=100 / 3,
    images=3.0,
    signals={"entropy": 0.1, "snd": float(np.float32(0.1))},
    effective_classes=2.0,
)
TRAINED = ClientRecord(
    domain="long name of a domain",
    drift=1e-300,
    bytes_down=2.0**40,
    epochs=({"loss": 0.7, "alignment.tau": 0.8}, {"loss": 0.6}),
)
BOTH = replace(JUDGED, epochs=({"loss": 0.25},), local_accuracy=50.0, stale=1.0)
CLIENTS_OF_A_ROUND = {"b": JUDGED, "a-10": TRAINED, "a-2 ": BOTH, "ü": replace(JUDGED, epochs=())}


def test_what_goes_in_comes_out_number_by_number_and_in_its_order() -> None:
    table = ClientTable.of(CLIENTS_OF_A_ROUND)
    assert list(table.items()) == list(CLIENTS_OF_A_ROUND.items())
    assert {client: dump(row) for client, row in table.items()} == {
        client: dump(row) for client, row in CLIENTS_OF_A_ROUND.items()
    }
    assert "nobody" not in table
    assert ClientTable.of(dict(table)).data == table.data


@pytest.mark.parametrize("name", ["accuracy", "entropy", "drift", "stale", "nothing"])
def test_a_column_is_what_the_rows_say(name: str) -> None:
    table = ClientTable.of(CLIENTS_OF_A_ROUND)
    np.testing.assert_array_equal(column(table, name), column(CLIENTS_OF_A_ROUND, name))


@pytest.mark.parametrize("name", ["loss", "alignment.tau", "nothing"])
def test_the_last_epoch_is_what_the_rows_say(name: str) -> None:
    table = ClientTable.of(CLIENTS_OF_A_ROUND)
    np.testing.assert_array_equal(last_epoch(table, name), last_epoch(CLIENTS_OF_A_ROUND, name))


def test_domains_are_what_the_rows_say() -> None:
    assert domains_of(ROUNDS[1].clients) == domains_of(dict(ROUNDS[1].clients))
    assert ClientTable.of(CLIENTS_OF_A_ROUND).domains == [row.domain for row in CLIENTS_OF_A_ROUND.values()]


def test_numpy_reads_the_file_without_us() -> None:
    with np.load(io.BytesIO(ClientTable.of(CLIENTS_OF_A_ROUND).data), allow_pickle=False) as file:
        assert file["client"].tolist() == list(CLIENTS_OF_A_ROUND)
        assert file["epoch/loss"].tolist() == [0.7, 0.6, 0.25]
        assert file["snd"].dtype == np.float32
        assert file["entropy"].dtype == np.float64


def test_few_clients_stay_as_they_are() -> None:
    few = {str(place): JUDGED for place in range(MANY)}
    assert gathered(few.items(), len(few)) == few
    many = {**few, "one more": JUDGED}
    assert isinstance(gathered(many.items(), len(many)), ClientTable)


def changed(**columns: object) -> bytes:
    """Return a file in which some columns are others, or gone."""
    with np.load(io.BytesIO(ClientTable.of(CLIENTS_OF_A_ROUND).data)) as file:
        made = {**{name: file[name] for name in file.files}, **columns}
    data = io.BytesIO()
    np.savez(data, **{name: value for name, value in made.items() if value is not None})
    return data.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no archive",
        changed(client=None),
        changed(epochs=None),
        changed(accuracy=np.zeros(3)),
        changed(accuracy=np.array(["a", "b", "c", "d"])),
        changed(accuracy=np.array([None] * 4)),
        changed(epochs=np.array([9.0, 1.0, 1.0, 0.0])),
        changed(epochs=np.array([-1.0, 2.0, 1.0, 1.0])),
    ],
)
def test_another_file_is_refused_and_not_unpickled(data: bytes) -> None:
    with pytest.raises(ModelRefused, match="columns of a round's clients"):
        ClientTable(data)["b"]


def test_a_file_that_would_fill_the_memory_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ClientTable.of(CLIENTS_OF_A_ROUND).data
    monkeypatch.setattr(client_table, "_LARGEST", 1_000)
    with pytest.raises(ModelRefused, match="too large"):
        ClientTable(data)["b"]


# -- beside the journal ---------------------------------------------------------------------------------


def record_of(index: int) -> RoundRecord:
    clients = {f"c{place}": replace(JUDGED, accuracy=index + place / 7) for place in range(MANY + 1)}
    return RoundRecord(
        round=index,
        participants=(),
        signals={"entropy": 1.0},
        clients=gathered(clients.items(), len(clients)),
        warnings=(),
        failures={},
        seconds=Seconds(adapt=1.0),
        selected_round=0,
    )


ROUNDS = [record_of(index) for index in range(4)]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "metrics.jsonl")
    made.restart([])
    for one in ROUNDS:
        made.append(one)
    return made


def file_of(journal: Journal, index: int) -> Path:
    return journal.path.parent / CLIENTS / f"round-{index:04}.npz"


def test_many_clients_are_read_from_beside_the_lines(journal: Journal) -> None:
    read = journal.read()
    assert read.trouble == ""
    assert [dict(one.clients) for one in read.rounds] == [dict(one.clients) for one in ROUNDS]
    assert max(map(len, read.lines)) < 400
    notes: list[str] = []
    assert [dict(one.clients) for one in journal.salvage(notes)] == [dict(one.clients) for one in ROUNDS]
    assert notes == []


def test_few_clients_are_in_the_line_as_ever(tmp_path: Path) -> None:
    made, few = Journal(tmp_path / "metrics.jsonl"), replace(ROUNDS[0], clients={"a": JUDGED})
    made.append(few)
    assert made.path.read_bytes() == sealed(dump(few))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_changed_byte_of_a_file_ends_the_record_before_its_line(journal: Journal) -> None:
    path = file_of(journal, 2)
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        read = journal.read()
        assert len(read.rounds) == 2
        assert "line 3 is damaged, clients/round-0002.npz is not what it was" in read.trouble
    with pytest.raises(ModelRefused, match=r"round-0002\.npz is not what it was"):
        read.require(3, "")


def test_a_missing_file_ends_the_record_and_is_named_in_a_report(journal: Journal) -> None:
    file_of(journal, 1).unlink()
    read = journal.read()
    assert len(read.rounds) == 1
    assert "clients/round-0001.npz cannot be read" in read.trouble
    notes: list[str] = []
    kept = journal.salvage(notes)
    assert [len(one.clients) for one in kept] == [MANY + 1, 0, MANY + 1, MANY + 1]
    assert len(notes) == 1
    assert "the clients of round 1 were left out" in notes[0]


def test_rounds_that_are_let_go_leave_no_file(journal: Journal) -> None:
    journal.restart(journal.read().lines[:2])
    assert sorted(path.name for path in (journal.path.parent / CLIENTS).iterdir()) == [
        "round-0000.npz",
        "round-0001.npz",
    ]
    journal.append(ROUNDS[2])
    assert len(journal.read().rounds) == 3


def test_an_unknown_number_is_the_same_unknown_after_reading() -> None:
    assert ClientTable.of(CLIENTS_OF_A_ROUND)["b"].drift is math.nan
