"""One run in a directory: who may write there, who may go on, and what is never overwritten."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from harness import TINY, Gate, contents, rows, same_result, summary, until


def test_a_second_run_in_a_directory_is_turned_away_while_the_first_goes_on(fedscal, tmp_path, tiny_runs):
    run = tmp_path / "run"
    gate = Gate(tmp_path / "gate")
    hold = gate.before("fedscal.federation", "_round")
    first = fedscal.start("run", *TINY, "--quiet", "--no-report", "--out", run, before=hold)
    until(lambda: gate.reached)
    before = contents(run)
    for words in (["run", *TINY, "--out", run], ["run", "--resume", run]):
        second = fedscal(*words)  # one that waited for the first would never end
        assert second.code == 6
        assert str(run) in second.error
    assert contents(run) == before
    gate.open()
    assert first.wait().code == 0
    assert same_result(run, tiny_runs["fedscal"])


def test_the_lock_of_a_dead_process_is_no_obstacle(fedscal, tmp_path, tiny_runs):
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
def test_out_never_overwrites_a_run(fedscal, tiny_runs, copy_of, finished):
    run = copy_of(tiny_runs["fedscal"])
    if not finished:
        (run / "summary.json").unlink()
    before = contents(run)
    ended = fedscal("run", *TINY, "seed=5", "--out", run)
    assert ended.code == 2
    assert "--resume" in ended.error
    assert contents(run) == before


@pytest.mark.parametrize("there", [True, False])
def test_resume_without_a_run_is_refused_and_makes_nothing(fedscal, tmp_path, there):
    run = tmp_path / "run"
    if there:
        run.mkdir()
    ended = fedscal("run", "--resume", run)
    assert ended.code == 2
    assert str(run) in ended.error
    assert list(tmp_path.rglob("*")) == ([run] if there else [])


@pytest.mark.parametrize("word", ["rounds=9", "seed=1", "method=fedloa", "lr=0.5", "threads=2", "rouns=1"])
def test_resume_with_another_key_is_refused_by_name(fedscal, tiny_runs, copy_of, word):
    run = copy_of(tiny_runs["fedscal"])
    before = contents(run)
    ended = fedscal("run", "--resume", run, word)
    assert ended.code == 2
    assert word.partition("=")[0] in ended.error
    assert contents(run) == before


def test_resume_together_with_out_is_refused(fedscal, tiny_runs, tmp_path):
    ended = fedscal("run", "--resume", tiny_runs["fedscal"], "--out", tmp_path / "x")
    assert ended.code == 2
    assert "--out" in ended.error


def test_resume_of_a_finished_run_changes_nothing(fedscal, tiny_runs, copy_of):
    run = copy_of(tiny_runs["fedmoon"])
    assert fedscal("run", "--resume", run, "--quiet", "--no-report").code == 0
    assert same_result(run, tiny_runs["fedmoon"])


def test_resume_after_a_hand_edited_spec_is_refused(fedscal, tiny_runs, copy_of):
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
def test_a_run_directory_may_have_any_name(fedscal, tmp_path, name):
    run = tmp_path / name / "run"
    no_drawings = "import fedscal.report.page as p; p._exhibits = lambda run, wanted: []"
    ended = fedscal("run", *TINY, "rounds=1", "--json", "--out", run, before=no_drawings)
    assert ended.code == 0, ended.err
    assert (run / "report.html").exists()
    assert len(rows(run)) == 2
    assert summary(run)["rounds"] == 1


@pytest.mark.parametrize("option", ["--out", "--resume"])
def test_a_name_that_is_too_long_is_refused_with_the_path(fedscal, tmp_path, option):
    words = TINY if option == "--out" else []
    ended = fedscal("run", *words, option, tmp_path / ("x" * 300))
    assert ended.code in (2, 7), ended.err
    assert "xxxxx" in ended.error


def test_a_run_needs_no_home_and_no_locale(fedscal, tmp_path, cache):
    before = "import os; [os.environ.pop(n, None) for n in ('HOME', 'LANG', 'LC_ALL', 'TERM', 'COLUMNS')]"
    run = tmp_path / "run"
    ended = fedscal("run", *TINY, "rounds=1", "--out", run, env={"LC_ALL": "C"}, before=before)
    assert ended.code == 0, ended.err


def test_another_folder_beside_the_checkpoints_is_passed_over(fedscal, tiny_runs, copy_of):
    """A file manager's copy must not stop a run."""
    run: Path = copy_of(tiny_runs["fedscal"])
    (run / "checkpoints" / "round-0003 (copy)").mkdir()
    ended = fedscal("run", "--resume", run, "--quiet", "--no-report")
    assert ended.code == 0, ended.err
    assert same_result(run, tiny_runs["fedscal"])
