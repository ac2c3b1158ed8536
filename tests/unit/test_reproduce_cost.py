"""The cost table: runs of its own, in turn, and ratios of given times, reckoned by hand."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import layouts
from fedscal.core.convert import dump
from fedscal.core.documents import sealed
from fedscal.experiment.records import ClientRecord, RoundRecord, Seconds, Traffic
from fedscal.paper.cost import Cost, costs, ratios, tables
from fedscal.paper.datasets import Copy, locate
from fedscal.paper.result import Result
from fedscal.paper.tables import COST, Entry, datasets_of, distinct_cells, entries, table

METHODS = ["fedloa", "fedprox", "fedwca", "ladd", "fedscal"]


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Copy]:
    root = tmp_path_factory.mktemp("data") / "OfficeHome"
    layouts.empty_tree(root, dict.fromkeys(layouts.OFFICE_HOME, 4), ["Bed", "Mug"])
    return locate(datasets_of(table("cost")), [root])


def runs_of(name: str, copies: Mapping[str, Copy], out: Path, **given: Any) -> list[Entry]:
    return entries(table(name), copies, given, out)


def clock(entry: Entry, *seconds: float) -> None:
    """Let a run be finished whose rounds took so long; a participant is sent 3 MB and sends 2."""
    folder = entry.cell.directory.path
    folder.mkdir(parents=True)
    client = ClientRecord(domain="Clipart", images=4, effective_classes=1.0)
    base = RoundRecord(
        round=0,
        participants=(),
        signals={},
        clients={"Clipart-0": client, "Product-0": replace(client, domain="Product")},
        warnings=(),
        failures={},
        seconds=Seconds(adapt=0.0),
        selected_round=0,
    )
    lines = [base] + [
        replace(
            base,
            round=number,
            participants=("Clipart-0", "Product-0"),
            seconds=Seconds(adapt=value, evaluate=1e6),
            bytes=Traffic(6e6, 4e6),
        )
        for number, value in enumerate(seconds, start=1)
    ]
    text = b"".join(sealed(dump(line)) for line in lines)
    (folder / "metrics.jsonl").write_bytes(text)
    (folder / "summary.json").write_text("{}")


def test_no_run_is_one_of_another_table(copies: Mapping[str, Copy], tmp_path: Path) -> None:
    """Not even when the other table's runs have the very same keys."""
    mine = runs_of("cost", copies, tmp_path)
    same = runs_of("office-home", copies, tmp_path, rounds="4", sources="Art")
    paths = {cell.directory.path for cell in distinct_cells(mine)}
    assert len(paths) == 5 * 3
    assert {path.parent.name for path in paths} == {"clocked"}
    assert {entry.cell.spec.digest() for entry in mine} <= {entry.cell.spec.digest() for entry in same}
    for entry in same:
        clock(entry, 1.0, 1.0)
    assert all(not cost.seconds for cost in costs(mine)), "their clocks are not read"


def test_runs_are_short_and_go_there_and_back(copies: Mapping[str, Copy], tmp_path: Path) -> None:
    mine = runs_of("cost", copies, tmp_path)
    order = [(entry.cell.spec.seed, entry.cell.spec.method) for entry in mine]
    assert order == [
        *((0, name) for name in METHODS),
        *((1, name) for name in reversed(METHODS)),
        *((2, name) for name in METHODS),
    ]
    assert {entry.cell.spec.rounds for entry in mine} == {4}


def test_ratios_are_taken_seed_by_seed_without_the_first_round(
    copies: Mapping[str, Copy], tmp_path: Path
) -> None:
    mine = runs_of("cost", copies, tmp_path, methods="fedloa,fedscal")
    seconds = {
        ("fedloa", 0): (99.0, 10.0, 12.0),  # 11
        ("fedloa", 1): (99.0, 20.0, 20.0),  # 20: a busy machine
        ("fedloa", 2): (99.0, 10.0, 10.0),  # 10
        ("fedscal", 0): (99.0, 11.0, 11.0),  # 11, ratio 1
        ("fedscal", 1): (99.0, 30.0, 20.0),  # 25, ratio 1.25
        ("fedscal", 2): (99.0, 12.0, 14.0),  # 13, ratio 1.3
    }
    for entry in mine:
        clock(entry, *seconds[entry.cell.spec.method, entry.cell.spec.seed])
    base, *_, ours = costs(mine)
    assert (base.method, base.seconds) == ("FedLoA", {0: 11.0, 1: 20.0, 2: 10.0})
    assert ours.ratios == {0: 1.0, 1: 1.25, 2: 1.3}
    assert ours.difference == pytest.approx(1.25 - 170.08 / 156.93)
    assert (ours.bytes_down, ours.bytes_up) == (3e6, 2e6)  # of one of the two participants
    assert ours.passes
    assert (ours.passes.forward, ours.passes.forward_backward) == (6, 10)
    row = ours.record("difference")
    expected = {"seconds": 13.0, "seconds_lowest": 11.0, "seconds_highest": 25.0, "ratio": 1.25, "seeds": 3}
    assert {key: row[key] for key in expected} == expected


def test_tables_show_two_decimals(copies: Mapping[str, Copy]) -> None:
    near = Cost("FedProx", 158.28, 158.28 / 156.93, {0: 10.077, 1: 10.1}, {0: 1.0077, 1: 1.0133})
    clocked, needs = tables([near, Cost("LADD", 114.9, 114.9 / 156.93, {}, {})], "difference")
    assert clocked.rows[0] == [
        *("FedProx", "158.28", "10.09", "10.08 to 10.10"),
        *("1.01", "1.01", "1.01 to 1.01", "+0.00"),
    ]
    assert clocked.rows[1] == ["LADD †", "114.90", "", "", "0.73", "", "", ""]
    assert needs.rows[1] == ["LADD †", "—", "—", "—", "—"]


def test_a_seed_that_only_one_of_them_has_gives_no_ratio() -> None:
    assert ratios({0: 3.0, 5: 9.0}, {0: 2.0, 1: 7.0}) == {0: 1.5}


def test_the_files_have_a_line_a_method(copies: Mapping[str, Copy], tmp_path: Path) -> None:
    mine = runs_of("cost", copies, tmp_path, seeds="0")
    for place, entry in enumerate(mine):
        clock(entry, 1.0, 10.0 + place)
    text, data, page = (p.read_text() for p in Result("cost", mine, copies, []).write(tmp_path))
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["method"] for row in rows] == [variant.title for variant in COST.variants]
    assert [float(row["ratio"]) for row in rows] == [1.0, 1.1, 1.2, 1.3, 1.4]
    assert rows[0]["forward"] == "5"
    assert json.loads(data)["rows"][4]["bytes_down"] == 3e6
    assert "made for this table alone, one after the other" in page
