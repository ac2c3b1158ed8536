"""One run in a directory: who may write there, who may go on, and what is never overwritten."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from harness import TINY, Copy, Gate, Words, Zygote, contents, rows, same_result, summary, until

from fedscal.models.device import processor


def test_a_second_run_in_a_directory_is_turned_away_while_the_first_goes_on(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path]
) -> None:
    run = tmp_path / "run"
    gate = Gate(tmp_path / "gate")
    hold = gate.before("fedscal.server.rounds", "_round")
    first = fedscal.start("run", *TINY, "--quiet", "--no-report", "--out", run, before=hold)
    until(lambda: gate.reached)
    before = contents(run)
    commands: tuple[Words, ...] = (["run", *TINY, "--out", run], ["run", "--resume", run])
    for words in commands:
        second = fedscal(*words)  # one that waited for the first would never end
        assert second.code == 6
        assert str(run) in second.error
    assert contents(run) == before
    gate.open()
    assert first.wait().code == 0
    assert same_result(run, tiny_runs["fedscal"])


def test_the_lock_of_a_dead_process_is_no_obstacle(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path]
) -> None:
    run = tmp_path / "run"
    child = fedscal.start("run", *TINY, "rounds=500", "--quiet", "--out", run)
    until(lambda: (run / ".lock").exists() and (run / "spec.toml").exists())
    child.send(9)
    child.wait()
    assert (run / ".lock").exists()
    (run / "spec.toml").unlink()
    assert fedscal("run", *TINY, "--quiet", "--no-report", "--out", run).code in (0, 2)
    other = tmp_path / "other"
    other.mkdir()
    (other / ".lock").write_text("4194304\n")
    assert fedscal("run", *TINY, "--quiet", "--no-report", "--out", other).code == 0
    assert same_result(other, tiny_runs["fedscal"])


@pytest.mark.parametrize("finished", [True, False])
def test_out_never_overwrites_a_run(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy, finished: bool
) -> None:
    run = copy_of(tiny_runs["fedscal"])
    if not finished:
        (run / "summary.json").unlink()
    before = contents(run)
    ended = fedscal("run", *TINY, "seed=5", "--out", run)
    assert ended.code == 2
    assert "--resume" in ended.error
    assert contents(run) == before


@pytest.mark.parametrize("there", [True, False])
def test_resume_without_a_run_is_refused_and_makes_nothing(
    fedscal: Zygote, tmp_path: Path, there: bool
) -> None:
    run = tmp_path / "run"
    if there:
        run.mkdir()
    ended = fedscal("run", "--resume", run)
    assert ended.code == 2
    assert str(run) in ended.error
    assert list(tmp_path.rglob("*")) == ([run] if there else [])


@pytest.mark.parametrize("word", ["rounds=9", "seed=1", "method=fedloa", "lr=0.5", "device=cpu", "rouns=1"])
def test_resume_with_another_key_is_refused_by_name(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy, word: str
) -> None:
    run = copy_of(tiny_runs["fedscal"])
    before = contents(run)
    ended = fedscal("run", "--resume", run, word)
    assert ended.code == 2
    assert word.partition("=")[0] in ended.error
    assert contents(run) == before


@pytest.fixture
def stopped(tiny_runs: dict[str, Path], copy_of: Copy) -> Path:
    """A run that was stopped before its last round."""
    run: Path = copy_of(tiny_runs["fedscal"])
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints" / "round-0003")
    return run


def change_environment(run: Path, **values: str) -> None:
    path = run / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_resume_with_other_threads_goes_on_and_says_that_bits_differ(
    fedscal: Zygote, cache: Path, tiny_runs: dict[str, Path], stopped: Path
) -> None:
    ended = fedscal("run", "--resume", stopped, "threads=2")
    assert ended.code == 0, ended.err
    text = "threads was 1 and is 2: the result will not be bit-identical to that of an uninterrupted run"
    assert ended.out.count(text) == 1
    assert summary(stopped)["warnings"] == [text]
    assert [line["round"] for line in rows(stopped) if text in line["warnings"]] == [3]
    assert rows(stopped)[:3] == rows(tiny_runs["fedscal"])[:3]
    assert text in (stopped / "report.html").read_text()
    assert summary(stopped)["spec_sha256"] == summary(tiny_runs["fedscal"])["spec_sha256"]
    cards = [json.loads(path.read_text()) for path in (cache / "source").glob("*/model.json")]
    assert {card["made_from"]["threads"] for card in cards} == {1}, "the source model was trained again"


def test_resume_with_other_threads_computes_with_them(fedscal: Zygote, stopped: Path) -> None:
    heard = """
import fedscal.server.rounds as module, torch
real = module._round
module._round = lambda *args: (print(torch.get_num_threads()), real(*args))[1]"""
    ended = fedscal("run", "--resume", stopped, "threads=2", "--quiet", "--no-report", before=heard)
    assert ended.out.split() == ["2"], ended.err


def test_threads_that_were_asked_for_but_did_nothing_leave_no_trace(
    fedscal: Zygote, tiny_runs: dict[str, Path], stopped: Path
) -> None:
    killed = "import os, fedscal.server.rounds as f; f._round = lambda *args: os._exit(9)"
    assert fedscal("run", "--resume", stopped, "threads=2", "--quiet", before=killed).code == 9
    assert fedscal("run", "--resume", stopped, "--quiet", "--no-report").code == 0
    assert same_result(stopped, tiny_runs["fedscal"])


def test_resume_on_another_kind_of_cpu_goes_on_and_says_that_bits_differ(
    fedscal: Zygote, stopped: Path
) -> None:
    change_environment(stopped, processor="Elsewhere 9000, AVX512, 01234567")
    text = f"processor was Elsewhere 9000, AVX512, 01234567 and is {processor()}: "
    assert any(row["found"].startswith(f"{stopped}: {text}") for row in findings(fedscal, stopped))
    ended = fedscal("run", "--resume", stopped, "--no-report")
    assert ended.code == 0, ended.err
    [warning] = summary(stopped)["warnings"]
    assert warning.startswith(text)
    assert "not be bit-identical" in warning
    assert warning in ended.out


def test_the_doctor_says_that_a_run_was_begun_here(fedscal: Zygote, tiny_runs: dict[str, Path]) -> None:
    found = findings(fedscal, tiny_runs["fedscal"])
    assert [row["found"] for row in found if row["check"] == "processor"] == [processor()]
    [run] = [row for row in found if row["check"] == "run"]
    assert "the same bits" in run["found"]


def test_a_run_that_did_not_record_its_kind_of_cpu_resumes(
    fedscal: Zygote, tiny_runs: dict[str, Path], stopped: Path
) -> None:
    path = stopped / "environment.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "processor"}))
    assert fedscal("run", "--resume", stopped, "--quiet", "--no-report").code == 0
    assert same_result(stopped, tiny_runs["fedscal"])


def findings(fedscal: Zygote, run: Path) -> list[dict[str, str]]:
    """Return what the doctor finds, without its training step, which says nothing here."""
    no_step = (
        "import fedscal.cli.doctor as d; d._training_step = lambda: d.Finding('training step', True, '')"
    )
    ended = fedscal("doctor", "--run", run, "--json", before=no_step)
    found: list[dict[str, str]] = json.loads(ended.out)
    return found


def test_resume_together_with_out_is_refused(
    fedscal: Zygote, tiny_runs: dict[str, Path], tmp_path: Path
) -> None:
    ended = fedscal("run", "--resume", tiny_runs["fedscal"], "--out", tmp_path / "x")
    assert ended.code == 2
    assert "--out" in ended.error


def test_resume_of_a_finished_run_changes_nothing(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
    run = copy_of(tiny_runs["fedmoon"])
    assert fedscal("run", "--resume", run, "--quiet", "--no-report").code == 0
    assert same_result(run, tiny_runs["fedmoon"])


def test_resume_after_a_hand_edited_spec_is_refused(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
    """Half of the rounds with one learning rate and half with another is a run of no spec."""
    run = copy_of(tiny_runs["fedscal"])
    (run / "summary.json").unlink()
    shutil.rmtree(run / "checkpoints" / "round-0003")
    spec = run / "spec.toml"
    spec.write_text(re.sub(r"(?m)^lr = .*$", "lr = 0.001", spec.read_text()))
    ended = fedscal("run", "--resume", run)
    assert ended.code in (2, 4), ended.out
    assert "spec" in ended.error


@pytest.mark.parametrize("name", ["with space", "ünïcöde 数字", "-dash", "a'quote\"", "x" * 200])
def test_a_run_directory_may_have_any_name(fedscal: Zygote, tmp_path: Path, name: str) -> None:
    run = tmp_path / name / "run"
    ended = fedscal("run", *TINY, "rounds=1", "--json", "--out", run)
    assert ended.code == 0, ended.err
    assert (run / "report.html").exists()
    assert len(rows(run)) == 2
    assert summary(run)["rounds"] == 1


@pytest.mark.parametrize("option", ["--out", "--resume"])
def test_a_name_that_is_too_long_is_refused_with_the_path(
    fedscal: Zygote, tmp_path: Path, option: str
) -> None:
    words = TINY if option == "--out" else []
    ended = fedscal("run", *words, option, tmp_path / ("x" * 300))
    assert ended.code in (2, 7), ended.err
    assert "xxxxx" in ended.error


def test_a_run_needs_no_home_and_no_locale(fedscal: Zygote, tmp_path: Path, cache: Path) -> None:
    before = "import os; [os.environ.pop(n, None) for n in ('HOME', 'LANG', 'LC_ALL', 'TERM', 'COLUMNS')]"
    run = tmp_path / "run"
    ended = fedscal("run", *TINY, "rounds=1", "--out", run, env={"LC_ALL": "C"}, before=before)
    assert ended.code == 0, ended.err


def test_another_folder_beside_the_checkpoints_is_passed_over(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
    """A file manager's copy must not stop a run."""
    run: Path = copy_of(tiny_runs["fedscal"])
    (run / "checkpoints" / "round-0003 (copy)").mkdir()
    ended = fedscal("run", "--resume", run, "--quiet", "--no-report")
    assert ended.code == 0, ended.err
    assert same_result(run, tiny_runs["fedscal"])
