"""The tables of a comparison: rows and their names, pairs, baselines, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedscal.compare import grid
from fedscal.compare.execute import Cell, cells_of
from fedscal.compare.row_labels import rows_of
from fedscal.compare.tables import (
    all_tables,
    by_row,
    by_source,
    contrasts,
    find_baseline,
    overall_table,
    to_markdown,
)
from fedscal.core.errors import UsageError

Score = Callable[[Cell], float | None]
DASH = "\N{EN DASH}"


def finished(out: Path, score: Score, **keys: Any) -> list[Cell]:
    """Return the cells of a grid, those with a score as if they had been run."""
    cells = cells_of(grid.union({"sources": "mnist,font", **keys}), out)
    for cell in cells:
        value = score(cell)
        if value is not None:
            last = {"font": value, "average": value}
            cell.directory.path.mkdir(parents=True)
            accuracy = {"last": last, "selected": last, "best": last}
            text = json.dumps({"rounds": 3, "accuracy": accuracy, "seconds": {"adapt": 1.0}})
            (cell.directory.path / "summary.json").write_text(text)
    return cells


def labels(out: Path, **keys: Any) -> list[str]:
    return [row.label for row in by_row(cells_of(grid.union(keys), out))]


def test_a_row_names_its_method_adaptation_and_what_varies(tmp_path: Path) -> None:
    assert labels(tmp_path, methods="fedloa,fedscal", seeds="0,1", rounds=3, tau_init=0.5) == [
        "FedLoA",
        "FedSCAl",
    ]
    assert labels(tmp_path, lambda_local="0,1", lambda_server="0,1", methods="fedloa,fedscal") == [
        "FedLoA",
        "FedSCAl, lambda_local=0, lambda_server=0",
        "FedSCAl, lambda_local=0",
        "FedSCAl, lambda_server=0",
        "FedSCAl",
    ]
    assert labels(tmp_path, adaptive="true,false", adaptations="shot,bmd", rounds=7) == [
        "FedSCAl",
        "FedSCAl, adaptive=false",
        "FedSCAl + BMD",
        "FedSCAl + BMD, adaptive=false",
    ]


def test_what_a_method_alone_varies_is_not_named_in_the_others(tmp_path: Path) -> None:
    tables = [{"method": "fedloa", "lr": 0.5}, {"method": "fedscal", "lr": [0.1, 0.2]}]
    assert labels(tmp_path, grid=tables) == ["FedLoA", "FedSCAl, lr=0.1", "FedSCAl, lr=0.2"]


def test_runs_of_unknown_parts_have_rows_too() -> None:
    facts = {"benchmark": "mine", "source": "a", "method": "new", "adaptation": "own"}
    assert [row.label for row in rows_of([{**facts, "lr": 1}, {**facts, "lr": 2}])] == [
        "new + own, lr=1",
        "new + own, lr=2",
    ]


def test_a_table_per_source_with_the_best_row_first(tmp_path: Path) -> None:
    def score(cell: Cell) -> float:
        return 60.0 + 10 * cell.spec.seed + 5 * float(cell.spec.flat()["tau_init"])

    cells = finished(tmp_path, score, tau_init="0.6,0.8", seeds="0,1")
    tables = [table.table() for table in by_source(cells)]
    assert [table.title for table in tables] == ["digits, source mnist", "digits, source font"]
    assert tables[0].header[:5] == ["method", "seeds", "source model", "font", "average, last round"]
    assert [row[:5] for row in tables[0].rows] == [
        ["FedSCAl", "0-1", "—", "69.0 ± 7.1", "69.0 ± 7.1"],
        ["FedSCAl, tau_init=0.6", "0-1", "—", "68.0 ± 7.1", "68.0 ± 7.1"],
    ]
    assert tables == [table for table in all_tables(cells, None) if "source" in table.title]


def test_rows_are_named_by_all_cells_though_some_have_no_result(tmp_path: Path) -> None:
    def score(cell: Cell) -> float | None:
        return 60.0 if cell.spec.flat()["tau_init"] == 0.6 else None

    (table, _) = by_source(finished(tmp_path, score, tau_init="0.6,0.8"))
    assert [row.method for row in table.rows] == ["FedSCAl, tau_init=0.6"]


def test_runs_of_equal_source_and_seed_are_paired_and_missing_ones_left_out_and_said(tmp_path: Path) -> None:
    def score(cell: Cell) -> float | None:
        if cell.spec.method == "fedloa":
            return 50.0 + 10 * cell.spec.seed
        gains = {("mnist", 0): 1.0, ("mnist", 1): 2.0, ("font", 0): 3.0}
        gain = gains.get((cell.spec.source, cell.spec.seed))
        return None if gain is None else 50 + 10 * cell.spec.seed + gain

    cells = finished(tmp_path, score, methods="fedloa,fedscal", seeds="0,1")
    overall = overall_table(cells, find_baseline(cells))
    assert overall is not None
    assert overall.rows == [
        ["FedLoA", "55.0", "baseline", DASH, DASH, DASH, DASH],
        ["FedSCAl", "55.3", "FedLoA", "+2.0", "3 / 0 / 0 of 3", "0.25", "0.25"],
    ]
    assert overall.notes[1:] == [
        "With 3 paired runs p cannot be below 0.25.",
        "Left out of the pairs, without a result: 1 run, the first FedSCAl from font, seed 1.",
    ]
    text = to_markdown(cells, "fedscal compare", all_tables(cells, overall))
    assert (
        text.index("digits, source font") < text.index("**All sources**") < text.index("| FedSCAl | 55.3 |")
    )


def _by_tau(cell: Cell) -> float:
    return 50.0 + 10 * cell.spec.seed + float(cell.spec.flat().get("tau_init", 0))


def test_one_pair_has_no_p(tmp_path: Path) -> None:
    cells = finished(tmp_path, _by_tau, methods="fedloa,fedscal", sources="mnist")
    table = overall_table(cells, find_baseline(cells))
    assert table is not None
    assert table.rows[1][3:] == ["+0.8", "1 / 0 / 0 of 1", DASH, DASH]
    assert len(table.notes) == 1


def test_p_is_corrected_for_the_rows_that_were_tested(tmp_path: Path) -> None:
    cells = finished(tmp_path, _by_tau, methods="fedloa,fedscal", tau_init="0,0.7,0.9", seeds="0,1,2")
    table = overall_table(cells, find_baseline(cells))
    assert table is not None
    assert [row[3:] for row in table.rows[1:]] == [
        ["0.0", "0 / 0 / 6 of 6", "1", "1"],
        ["+0.7", "6 / 0 / 0 of 6", "0.031", "0.094"],  # 2 / 64, three rows
        ["+0.9", "6 / 0 / 0 of 6", "0.031", "0.094"],
    ]
    assert len(table.notes) == 1, "six pairs are enough"


def baselines(out: Path, name: str = "", **keys: Any) -> dict[str, str]:
    cells = cells_of(grid.union(keys), out)
    baseline = find_baseline(cells, name)
    assert baseline is not None
    return {one.row.label: one.against.label for one in contrasts(cells, baseline)}


def test_the_baseline_has_the_rows_adaptation_if_it_can(tmp_path: Path) -> None:
    tables = [{"methods": "fedloa,fedscal,fedprox", "adaptations": "bmd,shot"}, {"method": "loa"}]
    found = baselines(tmp_path, grid=tables)
    assert found["FedSCAl + BMD"] == found["FedLoA + BMD"] == "FedLoA + BMD"
    assert found["FedSCAl"] == found["LoA"] == "FedLoA"
    tables = [{"method": "fedloa"}, {"method": "fedscal", "adaptation": "bmd"}]
    assert baselines(tmp_path, grid=tables)["FedSCAl + BMD"] == "FedLoA"


def test_the_baseline_shares_the_rows_settings_but_its_own_method_has_one(tmp_path: Path) -> None:
    found = baselines(tmp_path, methods="fedloa,fedscal", lr="0.1,0.03")
    assert found == {
        "FedLoA, lr=0.1": "FedLoA",
        "FedLoA": "FedLoA",
        "FedSCAl, lr=0.1": "FedLoA, lr=0.1",
        "FedSCAl": "FedLoA",
    }


def test_a_row_may_be_the_baseline(tmp_path: Path) -> None:
    none = "FedSCAl, lambda_local=0"
    found = baselines(tmp_path, none, lambda_local="0,1", adaptations="shot,bmd")
    assert found["FedSCAl"] == none
    assert found["FedSCAl + BMD"] == "FedSCAl + BMD, lambda_local=0"


def test_without_a_baseline_there_is_no_table_over_all_sources(tmp_path: Path) -> None:
    cells = finished(tmp_path, _by_tau, methods="fedscal,loa")
    assert find_baseline(cells) is None
    assert overall_table(cells, None) is None
    alone = finished(tmp_path, _by_tau, methods="fedloa")
    assert overall_table(alone, find_baseline(alone)) is None
    with pytest.raises(UsageError, match=r"--baseline fedlao: neither .*; did you mean"):
        find_baseline(cells, "fedlao")


def test_runs_without_labels_have_no_scores_and_do_not_stop_the_tables(tmp_path: Path) -> None:
    cells = finished(tmp_path, lambda cell: 50.0, methods="fedloa,fedscal")
    for cell in cells:
        path = cell.directory.path / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "accuracy": {}}))
    table = overall_table(cells, find_baseline(cells))
    assert table is not None
    assert [row[1] for row in table.rows] == [DASH, DASH]
    assert [made.title for made in all_tables(cells, table)] == ["All sources"]
