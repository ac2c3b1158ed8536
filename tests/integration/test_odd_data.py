"""Data and settings at which a training may break: the run ends, and no NaN is ever kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from harness import DIGITS, TINY, Zygote, rows, summary
from safetensors.torch import load_file


def all_finite(run: Path) -> bool:
    """Whether every tensor that the run left is finite."""
    found = [load_file(path) for path in run.rglob("*.safetensors")]
    assert found
    return all(
        torch.isfinite(t).all() for tensors in found for t in tensors.values() if t.is_floating_point()
    )


def strict(run: Path) -> bool:
    """Whether the metrics hold numbers only: NaN is not JSON."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    for line in (run / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    json.loads((run / "summary.json").read_text(), parse_constant=refuse)
    return True


@pytest.mark.parametrize(
    ("benchmark", "method"),
    [
        ("one-class", "fedscal"),
        ("identical", "fedscal"),
        ("black", "fedscal"),
        ("black", "fedmoon"),
        ("all-black", "fedscal"),
    ],
)
def test_odd_images_never_make_a_weight_that_is_not_finite(
    fedscal: Zygote, tmp_path: Path, benchmark: str, method: str
) -> None:
    run = tmp_path / "run"
    ended = fedscal(
        "run", f"benchmark={benchmark}", f"method={method}", "--quiet", "--no-report", "--out", run
    )
    assert ended.code == 0, ended.err
    assert all_finite(run)
    assert strict(run)
    assert not any(row["failures"] for row in rows(run))


@pytest.mark.parametrize(
    ("clients", "sizes", "method"),
    [
        pytest.param(48, {1}, "fedscal", marks=pytest.mark.long),
        (48, {1}, "fedmoon"),
        pytest.param(24, {2}, "fedscal", marks=pytest.mark.long),
        (40, {1, 2}, "loa"),
        (16, {3}, "fedscal"),
    ],
)
def test_clients_of_one_to_three_images_train(
    fedscal: Zygote, tmp_path: Path, clients: int, sizes: set[int], method: str
) -> None:
    run = tmp_path / "run"
    words = [f"clients_per_domain={clients}", "participation=0.15", f"method={method}", "batch_size=2"]
    ended = fedscal("run", *TINY, *words, "rounds=2", "--quiet", "--no-report", "--out", run)
    assert ended.code == 0, ended.err
    trained = [c for row in rows(run)[1:] for c in row["clients"].values() if "drift" in c]
    assert {c["images"] for c in trained} == sizes
    assert any(c["drift"] > 0 for c in trained)
    assert not any(row["failures"] for row in rows(run))
    assert all_finite(run)
    assert strict(run)


def test_clients_without_an_image_are_left_out_by_name(fedscal: Zygote, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["clients_per_domain=50", "participation=0.05"]
    ended = fedscal("run", *TINY, *words, "--no-report", "--out", run)
    assert ended.code == 0, ended.err
    warning = next(line for line in ended.out.splitlines() if "left out" in line)
    assert warning.startswith("warning")
    for text in (warning, " ".join(summary(run)["warnings"])):
        assert "b-48, b-49, c-48 and 1 more" in text
    judged = rows(run)[0]["clients"]
    assert len(judged) == 96
    assert "b-48" not in judged
    assert all_finite(run)


@pytest.mark.long
def test_digits_cut_into_more_clients_than_images_run(fedscal: Zygote, cache: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["rounds=1", "clients_per_domain=850", "participation=0.005"]
    ended = fedscal("run", *DIGITS, *words, "--no-report", "--out", run)
    assert ended.code == 0, ended.err
    assert "left out: font-840, font-841, font-842 and 7 more" in ended.out
    assert all_finite(run)


def test_a_collapse_is_told_in_metrics_summary_and_on_the_screen(fedscal: Zygote, tmp_path: Path) -> None:
    """Rigged: after the first round the head knows one class only."""
    rig = (
        "import fedscal.server.rules.average as r, torch\n"
        "real = r.Average.merge\n"
        "def merge(self, state, replies):\n"
        "    merged = real(self, state, replies)\n"
        "    merged.models['server']['head.bias'][0] = 1e3\n"
        "    return merged\n"
        "r.Average.merge = merge"
    )
    run = tmp_path / "run"
    words = [*TINY, "clients_per_domain=1", "participation=1", "--no-report"]
    ended = fedscal("run", *words, "--out", run, before=rig)
    assert ended.code == 0, ended.err
    assert rows(run)[0]["warnings"] == []
    for row in rows(run)[1:]:
        assert any("collapse" in text for text in row["warnings"])
    assert any("collapse" in text for text in summary(run)["warnings"])
    assert "collapse" in ended.out
    assert summary(run)["selected_round"] == 0


@pytest.mark.parametrize("words", [["lr=10"], ["lr=10", "method=fedmoon"], ["mu=1e30", "method=fedprox"]])
def test_a_run_that_diverges_keeps_its_last_finite_model(
    fedscal: Zygote, tmp_path: Path, words: list[str]
) -> None:
    run = tmp_path / "run"
    ended = fedscal("run", *TINY, *words, "rounds=8", "--no-report", "--out", run)
    assert ended.code in (0, 5), ended.err
    assert all_finite(run)
    failures = [text for row in rows(run) for text in row["failures"].values()]
    if ended.code == 5:
        assert "lr" in ended.error
        assert failures
        assert not (run / "summary.json").exists()
    for text in failures:
        assert "finite" in text or "infinity" in text


def test_failures_of_clients_are_named_and_the_round_goes_on(fedscal: Zygote, tmp_path: Path) -> None:
    """One client answers NaN, one another shape, one raises: the others make the model."""
    rig = (
        "import dataclasses, torch\n"
        "import fedscal.runtime.service as s\n"
        "real = s.local_update\n"
        "def rigged(package, memory, data, objective, training, streams, network):\n"
        "    reply, kept = real(package, memory, data, objective, training, streams, network)\n"
        "    weights = dict(reply.weights)\n"
        "    if streams.client == 'b-0': weights['head.bias'] = weights['head.bias'] * float('nan')\n"
        "    if streams.client == 'b-1': weights['head.bias'] = torch.zeros(7)\n"
        "    if streams.client == 'b-2': raise RuntimeError('no luck')\n"
        "    return dataclasses.replace(reply, weights=weights), kept\n"
        "s.local_update = rigged"
    )
    run = tmp_path / "run"
    ended = fedscal(
        "run", *TINY, "participation=1", "method=fedmoon", "--no-report", "--out", run, before=rig
    )
    assert ended.code == 0, ended.err
    for row in rows(run)[1:]:
        assert set(row["failures"]) == {"b-0", "b-1", "b-2"}
        assert "head.bias" in row["failures"]["b-0"]
        assert "NaN" in row["failures"]["b-0"]
        assert "head.bias" in row["failures"]["b-1"]
        assert row["failures"]["b-2"] == "no luck"
    assert all_finite(run)
    assert "no luck" in (run / "events.log").read_text()


def test_a_source_model_that_knows_one_class_is_doubted_before_round_one(
    fedscal: Zygote, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ["clients_per_domain=1", "pretrain_epochs=1", "pretrain_lr=1e-6", "rounds=1"]
    ended = fedscal("run", *TINY, *words, "--no-report", "--out", run)
    assert ended.code == 0, ended.err
    assert "one class only" in "".join(rows(run)[0]["warnings"])
    assert "one class only" in ended.out.partition("round 1/")[0]
