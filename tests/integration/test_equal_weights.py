"""Runs that must end with the same bits, and some that must not."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import TINY, Words, Zygote, more, rows, same_result, summary

# Four participants in every round, so that two workers have something to do and memories are used again.
MANY = [*TINY, "clients_per_domain=2", "participation=1"]
# Two rounds of all clients: in the second FedMOON has a model of its own to contrast with.
ALL = ["clients_per_domain=2", "participation=1", "rounds=2"]


def _sha(fedscal: Zygote, out: Path, *words: str) -> str:
    ended = fedscal("run", *TINY, *words, "--quiet", "--no-report", "--out", out)
    assert ended.code == 0, ended.err
    return str(summary(out)["weights_sha256"])


@pytest.fixture(scope="module")
def fedloa(fedscal: Zygote, tmp_path_factory: pytest.TempPathFactory) -> str:
    return _sha(fedscal, tmp_path_factory.mktemp("fedloa") / "run", "method=fedloa", *ALL)


@pytest.mark.parametrize(
    "words",
    [
        ["method=fedscal", "lambda_local=0", "lambda_server=0"],
        more(["method=fedprox", "mu=0"]),
        more(["method=fedmoon", "mu=0"]),
    ],
    ids=lambda words: words[0],
)
def test_a_method_with_its_terms_off_is_fedloa(
    fedscal: Zygote, tmp_path: Path, fedloa: str, words: list[str]
) -> None:
    assert _sha(fedscal, tmp_path / "run", *words, *ALL) == fedloa


@pytest.mark.parametrize(
    "words",
    [
        ["method=fedscal", "lambda_local=0"],
        more(["method=fedscal", "lambda_server=0"]),
        more(["method=fedprox", "mu=0.1"]),
        ["method=fedmoon"],
        more(["method=fedloa", "seed=1"]),
        ["method=fedloa", "beta=0"],
    ],
    ids=" ".join,
)
def test_a_term_that_is_on_moves_the_weights(
    fedscal: Zygote, tmp_path: Path, fedloa: str, words: list[str]
) -> None:
    assert _sha(fedscal, tmp_path / "run", *words, *ALL) != fedloa


@pytest.mark.parametrize("method", ["fedmoon", more("fedscal")])
def test_the_same_run_twice_has_the_same_bits(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path], method: str
) -> None:
    again = tmp_path / "again"
    _sha(fedscal, again, f"method={method}")
    assert same_result(again, tiny_runs[method])


def test_another_seed_has_other_bits(fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path]) -> None:
    assert _sha(fedscal, tmp_path / "run", "seed=1") != summary(tiny_runs["fedscal"])["weights_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["fedmoon", *(pytest.param(name, marks=pytest.mark.long) for name in ("fedscal", "ladd"))]
)
def test_worker_processes_change_no_bit(fedscal: Zygote, tmp_path: Path, method: str) -> None:
    """FedMOON's workers get all that FedSCAl's do, and memories."""
    for workers in (1, 2):
        out = tmp_path / str(workers)
        words: Words = [
            *MANY,
            f"method={method}",
            f"workers={workers}",
            "--quiet",
            "--no-report",
            "--out",
            out,
        ]
        ended = fedscal("run", *words)
        assert ended.code == 0, ended.err
    assert same_result(tmp_path / "1", tmp_path / "2")
    assert len(rows(tmp_path / "1")[-1]["participants"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, more(2)])
def test_who_judges_changes_no_weight_and_depends_on_no_workers(
    fedscal: Zygote, tmp_path: Path, workers: int
) -> None:
    """Round 2 of 3 is judged by three of the four clients; all four train, and three judge their own."""
    keys = ["judge_clients=3", "judge_every=2"]
    kinds = {"all": [], "1": [*keys, "workers=1"], str(workers): [*keys, f"workers={workers}"]}
    for name, words in kinds.items():
        end = ["--quiet", "--no-report", "--out", str(tmp_path / name)]
        ended = fedscal("run", *MANY, "method=fedloa", *words, *end)
        assert ended.code == 0, ended.err
    assert same_result(tmp_path / "1", tmp_path / str(workers))
    assert summary(tmp_path / "1")["weights_sha256"] == summary(tmp_path / "all")["weights_sha256"]
    assert summary(tmp_path / "1")["accuracy"]["last"] == summary(tmp_path / "all")["accuracy"]["last"]
    whole, some = rows(tmp_path / "all"), rows(tmp_path / "1")
    assert (some[0], some[3]["clients"]) == (whole[0], whole[3]["clients"])
    assert not any("images" in row or "local_accuracy" in row for row in some[1]["clients"].values())
    judged = {client for client, row in some[2]["clients"].items() if "images" in row}
    assert len(judged) == 3
    assert all(some[2]["clients"][client] == whole[2]["clients"][client] for client in judged)
