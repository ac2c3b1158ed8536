"""What audits and verdicts without labels say on pages: runs compared image by image, colours, commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_report import make_lines, summarise, without_labels, write_run

from fedscal.compare.audit_verdict import site_audit
from fedscal.compare.audited import audit_tables
from fedscal.core.convert import dump
from fedscal.experiment.audits import Audit, Seen
from fedscal.experiment.load import load_run
from fedscal.report import write_comparison, write_report
from fedscal.report.verdict import judge

pytest.importorskip("jinja2")


def unlabelled(path: Path, delivery: dict[str, Any] | None = None, **spec: Any) -> Path:
    """Write a finished run without labels."""
    summary: dict[str, Any] = {"method": "fedscal", "benchmark": "sites", "rounds": 2, "accuracy": {}}
    summary |= {"delivery": delivery} if delivery else {}
    return write_run(path, without_labels(make_lines(rounds=2)), summary, **spec)


def audited(path: Path, right: str, images: str = "abcdefghij", model: str = "last.safetensors") -> Path:
    """Write the audit of a run whose answers to these images are right (1) or wrong (0)."""
    answers = [answer == "1" for answer in right]
    audit = Audit(
        model_sha256="ab" * 32,
        sites=[site_audit("<north>", answers, [True] * len(answers))],
        model=model,
        verdict="worse",
        sentence="The adapted model is worse at <north>.",
        seen=Seen(adapted_to=0, source=0),
        answers={"<north>": dict(zip(images, answers, strict=True))},
    )
    (path / "audit.json").write_text(json.dumps(dump(audit)))
    return path


def test_runs_that_were_audited_on_the_same_images_are_compared_in_pairs(tmp_path: Path) -> None:
    first = audited(unlabelled(tmp_path / "a"), "1111100000")
    second = audited(unlabelled(tmp_path / "b", method="fedloa"), "1111011111")
    (table,) = audit_tables([load_run(first), load_run(second)])
    assert table.title == "Audited on 10 labelled images"
    assert table.header[1] == table.headline == "<north>"
    assert table.rows[0][-3] == "first"
    assert table.rows[1][1].startswith("90.0 % [")
    assert table.rows[1][-3:] == ["5 / 1", "0.22", "0.22"]  # 2 (1 + 6) / 2^6
    page = write_comparison([first, second], tmp_path / "page.html").read_text()
    assert "0 left out" in page
    assert "No run can be compared" not in page
    assert "<north>" not in page
    assert "&lt;north&gt;" in page


def test_runs_that_were_audited_on_other_images_are_not_compared(tmp_path: Path) -> None:
    runs = [
        load_run(audited(unlabelled(tmp_path / "a"), "1111100000")),
        load_run(audited(unlabelled(tmp_path / "b"), "1111100000", images="klmnopqrst")),
        load_run(audited(unlabelled(tmp_path / "c"), "1111100000", model="source.safetensors")),
    ]
    tables = audit_tables(runs)
    assert [len(table.rows) for table in tables] == [1, 1], "the third audit was of the source model"
    assert all("2 different sets of images" in " ".join(table.notes) for table in tables)


def test_without_labels_an_audit_is_the_headline(tmp_path: Path) -> None:
    path = audited(unlabelled(tmp_path / "a", {"round": 2, "verdict": "better"}), "1111100000")
    verdict = judge(load_run(path))
    assert (verdict.tone, verdict.headline) == ("worse", "The adapted model is worse at <north>.")
    assert "Without labels the run delivers round 2, verdict “better”." in verdict.details
    page = write_report(path).read_text()
    assert 'class="verdict worse"' in page
    assert "None of the 10 images is, byte for byte, one that the run adapted to." in page
    assert "no table of accuracies" not in page


def test_an_audit_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    path = unlabelled(tmp_path / "a")
    (path / "audit.json").write_text('{"model_sha256": 3, "sites": "x"}')
    assert "audit.json cannot be read and was left out." in write_report(path).read_text()


def test_an_unsure_run_names_what_to_look_at_and_the_commands(tmp_path: Path) -> None:
    delivery = {"round": 1, "verdict": "unsure", "reasons": ["changed at my site"], "sites": ["my site"]}
    path = unlabelled(tmp_path / "a", delivery, clients="/data/sites", statistics="site")
    verdict = judge(load_run(path))
    assert verdict.tone == "unsure"
    assert verdict.headline == "Unsure whether the model got better. Why: changed at my site."
    looks, audit, predict = verdict.commands
    assert looks.startswith(f"fedscal predict {path} '/data/sites/my site' --site 'my site' --out ")
    assert audit.startswith(f"fedscal audit {path} FOLDER")
    assert predict.startswith(f"fedscal predict {path} ")
    page = write_report(path).read_text()
    assert 'class="verdict unsure"' in page
    assert f"fedscal audit {path} FOLDER" in page


def collapse(lines: list[dict[str, Any]], client: str) -> list[dict[str, Any]]:
    for line in lines:
        line["clients"][client]["images"] = 100
    lines[-1]["clients"][client]["effective_classes"] = 2.0
    return lines


def test_a_collapse_at_one_client_colours_the_banner(tmp_path: Path) -> None:
    lines = collapse(make_lines(), "font-0")
    labelled = judge(load_run(write_run(tmp_path / "labelled", lines, summarise(lines))))
    assert labelled.tone == "unsure"
    assert labelled.details[0] == "In the last round predictions collapse to few classes at font-0."
    summary = {"method": "fedscal", "rounds": 4, "accuracy": {}}
    blind = judge(load_run(write_run(tmp_path / "blind", without_labels(lines), summary)))
    assert blind.tone == "worse"
    assert blind.headline.startswith(
        "Do not use this model before you have checked it. In the last round predictions collapse to few "
        "classes at font-0. Accuracy is unknown"
    )


def test_a_labelled_run_says_its_verdict_without_labels_too(tmp_path: Path) -> None:
    lines = make_lines()
    delivery = {"round": 3, "verdict": "do not use", "reasons": ["one class only"]}
    run = load_run(write_run(tmp_path, lines, summarise(lines, delivery=delivery)))
    verdict = judge(run)
    assert verdict.tone == "unsure"
    said = "Without labels the run delivers round 3, verdict “do not use”. Why: one class only."
    assert verdict.details[0] == said
    assert not verdict.commands, "digits have no folders to audit with"
