"""What the report says: the verdict's words, the round that counts, and what is missing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedscal.core.text import duration, percent, signed, size, spans, spread
from fedscal.experiment.load import load_run, natural
from fedscal.experiment.outcome import client_rows, domain_rows, epoch_grid, failures, outcome, warnings
from fedscal.report import write_report
from fedscal.report.verdict import judge, standing

pytest.importorskip("jinja2")

ALL = {"font": (60.0, 90.0), "mnist": (70.0, 95.0)}


def metrics(
    scores: dict[str, tuple[float, float]], at: int, rounds: int, clients: int, epochs: int
) -> dict[str, Any]:
    """Return one line: every accuracy goes straight from its first value to its last."""
    now = {name: first + (last - first) * at / max(rounds, 1) for name, (first, last) in scores.items()}
    average = sum(now.values()) / max(len(now), 1)
    people: dict[str, Any] = {}
    for domain, score in now.items():
        for place in range(clients):
            client = {
                "domain": domain,
                "accuracy": score - place,
                "entropy": 1 - at / 20,
                "effective_classes": 9.5,
            }
            epoch = {
                "alignment.tau": 0.9,
                "alignment.gamma": 0.1 * (-1) ** place,
                "alignment.share_local": 0.5,
            }
            if at:
                client |= {"local_accuracy": score - 1, "drift": 0.3 + place, "epochs": [epoch] * epochs}
            people[f"{domain}-{place}"] = client
    line: dict[str, Any] = {
        "round": at,
        "participants": list(people) if at else [],
        "accuracy": {"server": now | {"average": average}} | ({"clients": now} if at else {}),
        "pseudo_label_accuracy": now | {"average": average},
        "signals": {"entropy": 1 - at / 20, "infomax": 1 + at / 20, "snd": 5.0},
        "selected_round": max(0, at - 1),
        "clients": people,
        "seconds": {"adapt": 1.5, "evaluate": 0.5},
        "bytes": {"down": 100_000, "up": 200_000},
    }
    return line


def summarise(lines: list[dict[str, Any]], **facts: Any) -> dict[str, Any]:
    table = [line["accuracy"]["server"] for line in lines]
    accuracy = {"source_only": table[0], "last": table[-1], "selected": table[-2], "best": table[-1]}
    last = lines[-1]["round"]
    summary = {
        "benchmark": "digits",
        "source": "optdigits",
        "method": "fedscal",
        "adaptation": "shot",
        "seed": 0,
    }
    return (
        summary
        | {
            "rounds": last,
            "accuracy": accuracy,
            "selected_round": last - 1,
            "best_round": last,
            "weights_sha256": "ab" * 32,
        }
        | facts
    )


def write_run(path: Path, lines: list[dict[str, Any]], summary: dict[str, Any] | None, **spec: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "environment.json").write_text(json.dumps({"python": "3.11.7", "cores": 2}))
    spec = {"method": "fedscal", "rounds": len(lines) - 1} | spec
    (path / "spec.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in spec.items()))
    if summary is not None:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def make_lines(
    scores: dict[str, tuple[float, float]] = ALL, rounds: int = 4, clients: int = 2, epochs: int = 2
) -> Any:
    return [metrics(scores, at, rounds, clients, epochs) for at in range(rounds + 1)]


def without_labels(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for line in lines:
        line.pop("accuracy"), line.pop("pseudo_label_accuracy")
        for client in line["clients"].values():
            client.pop("accuracy"), client.pop("local_accuracy", None)
    return lines


def finished_run(path: Path) -> Path:
    lines = make_lines()
    return write_run(path / "finished", lines, summarise(lines))


def test_verdict_better(tmp_path: Path) -> None:
    verdict = judge(load_run(finished_run(tmp_path)))
    assert verdict.tone == "better"
    assert verdict.headline == (
        "The adapted model is better than the source model in 2 of 2 domains: "
        "average 65.0 % → 92.5 % (last round)."
    )
    assert verdict.details == [
        "None of the 4 clients got worse.",
        "The label-free choice, round 3, has 85.6 %; the best round, 4, has 92.5 %, but only labels can "
        "find it (oracle).",
    ]


def test_verdict_names_the_domain_that_lost(tmp_path: Path) -> None:
    lines = make_lines({"font": (91.0, 80.2), "mnist": (50.0, 90.0)}, clients=1)
    verdict = judge(load_run(write_run(tmp_path, lines, summarise(lines))))
    assert verdict.tone == "worse"
    assert verdict.headline == (
        "The adapted model is WORSE than the source model in 1 of 2 domains: font 91.0 % → 80.2 %. "
        "Over all domains: average 70.5 % → 85.1 % (last round)."
    )
    assert verdict.details[0] == "1 of 2 clients got WORSE, in points: font-0 (\N{MINUS SIGN}10.8)."
    page = write_report(tmp_path).read_text()
    assert "\N{MINUS SIGN}10.8 WORSE" in page  # a word, not a colour alone


def test_verdict_of_many_domains_names_those_that_lost_most(tmp_path: Path) -> None:
    lines = make_lines({f"d{place}": (50.0, 49.0 - place) for place in range(8)}, clients=1)
    headline = judge(load_run(write_run(tmp_path, lines, summarise(lines)))).headline
    assert headline.startswith(
        "The adapted model is WORSE than the source model in 8 of 8 domains: d7 50.0 %"
    )
    assert ", d3 50.0 % → 46.0 % and 3 more. Over all domains: " in headline


def test_verdict_without_labels(tmp_path: Path) -> None:
    lines = without_labels(make_lines())
    summary = {"method": "fedscal", "rounds": 4, "selected_round": 2, "accuracy": {}}
    verdict = judge(load_run(write_run(tmp_path, lines, summary)))
    assert verdict.tone == "unknown"
    assert verdict.headline == (
        "Accuracy is unknown: this run has no labels, so nobody can say from it whether the model got better "
        "or worse. Label-free signals, source model → round 4: entropy 1.00 → 0.80, infomax 1.00 → 1.20, "
        "snd 5.00 → 5.00."
    )
    assert verdict.details == ["The label-free choice is round 2."]
    page = write_report(tmp_path).read_text()
    assert "no table of accuracies" in page
    assert 'data-chart="signal-0"' in page
    assert 'data-chart="accuracy"' not in page


def test_verdict_same_and_tiny_changes(tmp_path: Path) -> None:
    lines = make_lines({"font": (90.0, 89.96), "mnist": (70.0, 70.04)})
    verdict = judge(load_run(write_run(tmp_path, lines, summarise(lines))))
    assert verdict.tone == "same"
    assert verdict.headline == (
        "The adapted model is no better and no worse than the source model: "
        "average 80.0 % → 80.0 % (last round)."
    )


def test_unfinished_run_is_reported_from_its_rounds(tmp_path: Path) -> None:
    path = write_run(tmp_path, make_lines(), None, rounds=12)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 5, "accur')  # killed while writing
    run = load_run(path)
    assert standing(run) == "Unfinished: 4 of 12 rounds are recorded. The run is going on or was stopped."
    assert judge(run).headline.endswith("average 65.0 % → 92.5 % (round 4, the last so far).")
    assert run.notes == ["metrics.jsonl, line 6: not a whole record, left out."]
    assert (outcome(run).selected_round, outcome(run).best_round) == (3, 4)
    assert domain_rows(run)[0].own == 89.0
    assert "Unfinished: 4 of 12" in write_report(path).read_text()


def test_a_summary_older_than_the_metrics_does_not_count(tmp_path: Path) -> None:
    lines = make_lines()
    run = load_run(write_run(tmp_path, lines, summarise(lines[:3])))
    assert not run.finished
    assert outcome(run).accuracy.last.average == 92.5


@pytest.mark.parametrize("rounds", [0, 1])
def test_short_runs(tmp_path: Path, rounds: int) -> None:
    lines = make_lines(rounds=rounds, clients=1)
    summary = summarise([lines[0], *lines])
    run = load_run(write_run(tmp_path, lines, summary))
    assert 'data-chart="accuracy"' in write_report(tmp_path).read_text()
    if rounds == 0:
        assert judge(run).headline == (
            "No round of adaptation is recorded. The source model's average accuracy is 65.0 %."
        )


def test_missing_numbers_are_dashes(tmp_path: Path) -> None:
    lines = make_lines()
    lines[2]["accuracy"]["server"] = {"font": None, "mnist": math.nan, "average": math.inf}
    lines[3] |= {"signals": None, "clients": None, "seconds": "soon", "warnings": None, "participants": None}
    lines[4]["clients"]["font-0"] |= {"accuracy": math.nan, "epochs": [{"alignment.tau": None}, None]}
    lines[4]["clients"]["mnist-1"] = None
    summary = summarise(lines)
    summary["accuracy"]["last"] = {"font": 90.0, "mnist": None}
    run = load_run(write_run(tmp_path, lines, summary))
    rows = {row.name: row for row in domain_rows(run)}
    assert rows["mnist"].word == "unknown"
    assert rows["average"].after == 90.0  # of what is known
    assert client_rows(run)[0].word == "unknown"
    assert write_report(tmp_path).read_text().count("— unknown") >= 2


def test_what_sites_keep_of_the_source_model_is_a_column_where_they_decide_it(tmp_path: Path) -> None:
    lines = make_lines()
    assert "Source model kept" not in write_report(write_run(tmp_path, lines, summarise(lines))).read_text()
    lines[4]["clients"]["font-0"]["source_share"] = 0.426
    page = write_report(write_run(tmp_path, lines, summarise(lines))).read_text()
    assert '<th scope="col">Source model kept</th>' in page
    assert "<td>42.6 %</td>" in page


def test_warnings_and_failures_are_gathered(tmp_path: Path) -> None:
    lines = make_lines()
    for at in (1, 2, 4):
        lines[at] |= {"warnings": [f"round {at}: few samples"], "failures": {"mnist-1": "not finite"}}
    run = load_run(
        write_run(tmp_path, lines, summarise(lines, warnings=["round 1: few samples", "at the end"]))
    )
    assert warnings(run) == {"few samples": [1, 2, 4], "at the end": ()}
    assert failures(run) == {"mnist-1": {"not finite": [1, 2, 4]}}
    assert judge(run).details[-1] == "See “Warnings and failures”: 2 warnings and 3 failures."
    assert "few samples <span" in write_report(tmp_path).read_text()


def test_epoch_grid_has_a_column_for_each_local_epoch(tmp_path: Path) -> None:
    grid = epoch_grid(load_run(finished_run(tmp_path)), "alignment.tau")
    assert grid.columns == [1, 1, 2, 2, 3, 3, 4, 4]
    assert grid.values.shape == (4, 8)


def test_numbers_are_written_for_people() -> None:
    assert (percent(math.nan), percent(92.77)) == ("—", "92.8 %")
    assert (signed(-0.04), signed(1.0)) == ("0.0", "+1.0")
    assert (duration(59.99), duration(3600), size(999), size(2.5e12)) == (
        "60.0 s",
        "1 h 0 min",
        "999 B",
        "2.5 TB",
    )
    assert (spans([3, 1, 2, 9]), spread([])) == ("1-3, 9", "—")
    assert sorted(["a-10", "b", "a-2", ""], key=natural) == ["", "a-2", "a-10", "b"]
