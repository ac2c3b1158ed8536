"""A run that is stopped at any moment goes on to the same bits as one that never was."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness import (
    DIGITS,
    TINY,
    Zygote,
    alive,
    children,
    rows,
    same_result,
    start_program,
    summary,
    until,
)

LONG = ["rounds=50", "local_epochs=2000", "workers=1"]


def _begin_or_resume(run: Path, *words: str) -> list[str]:
    """Return the command that a user would give next."""
    going_on = ["--resume", str(run)] if (run / "spec.toml").exists() else [*words, "--out", str(run)]
    return ["run", *going_on, "--quiet", "--no-report"]


# -- SIGKILL ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_kill_at_any_write_leaves_a_run_that_ends_with_the_same_bits(fedscal, tmp_path, tiny_runs):
    """Every change of the files is a place to die: rename, unlink, mkdir, and what was written before it.

    FedMOON writes all that any method writes, its clients' memories too.
    """
    words = [*TINY, "method=fedmoon"]
    whole = fedscal.start(*_begin_or_resume(tmp_path / "whole", *words), die_at=10**9)
    assert whole.wait().code == 0
    assert whole.changes > 30
    broken = []
    for point in range(1, whole.changes + 1):
        run = tmp_path / "run"
        killed = fedscal(*_begin_or_resume(run, *words), die_at=point)
        assert killed.code == -signal.SIGKILL
        resumed = fedscal(*_begin_or_resume(run, *words))
        if resumed.code != 0 or not same_result(run, tiny_runs["fedmoon"]):
            broken.append((point, resumed.code, resumed.err))
        shutil.rmtree(run)
    assert broken == []


@pytest.mark.slow
def test_a_kill_while_the_cache_is_built_leaves_one_that_is_whole_or_built_again(
    fedscal, tmp_path, tiny_runs
):
    words = [*TINY, "method=fedscal", "rounds=1", "--quiet", "--no-report", "--out"]
    assert fedscal("run", *words, tmp_path / "expected").code == 0
    pretrain = ["pretrain", *TINY, "--quiet"]
    whole = fedscal.start(*pretrain, cache=tmp_path / "whole", die_at=10**9)
    assert whole.wait().code == 0
    assert whole.changes > 15
    for point in range(1, whole.changes + 1):
        cache = tmp_path / f"cache-{point}"
        assert fedscal(*pretrain, cache=cache, die_at=point).code == -signal.SIGKILL
        assert fedscal("run", *words, cache / "run", cache=cache).code == 0
        assert same_result(cache / "run", tmp_path / "expected"), point


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedscal", "fedmoon"])
def test_kills_at_random_moments_of_a_run_leave_the_same_bits(fedscal, tmp_path, method):
    """Ten kills of one run, spread over its life after the imports."""
    words = [*TINY, f"method={method}", "rounds=12", "participation=0.6"]
    started = time.monotonic()
    assert fedscal(*_begin_or_resume(tmp_path / "whole", *words)).code == 0
    life = time.monotonic() - started
    moments, run, kills, late = random.Random(7), tmp_path / "run", 0, 0
    while kills < 10:
        child = fedscal.start(*_begin_or_resume(run, *words))
        time.sleep(moments.uniform(0, 0.7 * life))
        child.send(signal.SIGKILL)
        if child.wait().code == -signal.SIGKILL:
            kills += 1
            late += any((run / "checkpoints").glob("round-*"))
        else:  # it was faster: begin anew
            assert same_result(run, tmp_path / "whole")
            shutil.rmtree(run)
    assert late >= 3
    assert fedscal(*_begin_or_resume(run, *words)).code == 0
    assert same_result(run, tmp_path / "whole")


@pytest.mark.slow
def test_kills_of_the_installed_program_from_its_first_moment_on_leave_the_same_bits(
    fedscal, cache, tmp_path
):
    words = [*DIGITS, "method=fedmoon"]
    assert fedscal(*_begin_or_resume(tmp_path / "whole", *words)).code == 0
    moments, run, kills = random.Random(3), tmp_path / "run", 0
    for latest in (1.0, 3.0, 4.0, 5.0, 6.0):
        with start_program(cache, *_begin_or_resume(run, *words)) as process:
            time.sleep(moments.uniform(0.5, 1) * latest)
            process.kill()
        kills += process.returncode == -signal.SIGKILL
    assert kills >= 3
    assert fedscal(*_begin_or_resume(run, *words)).code == 0
    assert same_result(run, tmp_path / "whole")


def test_a_line_that_a_kill_cut_off_is_written_again(fedscal, tiny_runs, copy_of):
    run = copy_of(tiny_runs["fedmoon"])
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(lines[:-1]) + lines[-1][:100])
    shutil.rmtree(run / "checkpoints" / "round-0003")
    (run / "summary.json").unlink()
    assert fedscal("run", "--resume", run, "--quiet", "--no-report").code == 0
    assert same_result(run, tiny_runs["fedmoon"])


def test_no_worker_outlives_a_killed_parent(cache, tmp_path):
    words = [*DIGITS, *LONG, "workers=2", "--quiet", "--out", str(tmp_path / "run")]
    with start_program(cache, "run", *words) as process:
        until(lambda: (tmp_path / "run" / "checkpoints" / "round-0000").exists())
        workers = children(process.pid)
        assert len(workers) == 2
        process.kill()
    until(lambda: not any(alive(worker) for worker in workers), seconds=5)


def test_a_worker_that_dies_costs_its_client_one_round_and_not_the_run(cache, tmp_path):
    """What the kernel does to a worker when memory is short."""
    run = tmp_path / "run"
    words = [*DIGITS, "rounds=1", "local_epochs=30", "workers=2", "--quiet", "--no-report", "--out", str(run)]
    with start_program(cache, "run", *words) as process:
        until(lambda: (run / "checkpoints" / "round-0000").exists())
        time.sleep(0.5)
        signal_to = children(process.pid)
        assert len(signal_to) == 2
        subprocess.run(["kill", "-9", str(signal_to[0])], check=True)
        process.wait(120)
    assert process.returncode == 0
    assert len(rows(run)[1]["failures"]) == 1
    assert "worker process ended" in next(iter(rows(run)[1]["failures"].values()))


def test_a_worker_that_dies_while_it_judges_does_not_end_the_run_as_a_bug(cache, tmp_path):
    run = tmp_path / "run"
    words = [*DIGITS, "workers=2", "--quiet", "--no-report", "--out", str(run)]
    with start_program(cache, "run", *words, stderr=subprocess.PIPE) as process:
        until(lambda: len(children(process.pid)) == 2)  # they start with the judgement of the source model
        time.sleep(0.3)
        subprocess.run(["kill", "-9", str(children(process.pid)[0])], check=True)
        said = process.communicate(timeout=120)[1]
    assert process.returncode != 1, said


# -- Ctrl-C and SIGTERM -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "number"), [("fedscal", signal.SIGINT), ("fedmoon", signal.SIGTERM)])
def test_an_interrupted_run_says_how_to_go_on_and_goes_on_to_the_same_bits(fedscal, tmp_path, method, number):
    words = [*TINY, f"method={method}", "rounds=8", "local_epochs=5"]
    assert fedscal(*_begin_or_resume(tmp_path / "whole", *words)).code == 0
    run = tmp_path / "run"
    child = fedscal.start(*_begin_or_resume(run, *words))
    until(lambda: (run / "checkpoints" / "round-0001").exists())
    child.send(number)
    sent = time.monotonic()
    ended = child.wait(20)
    assert time.monotonic() - sent < 5
    assert ended.code == 130
    assert not (run / "summary.json").exists()
    assert fedscal(*_begin_or_resume(run, *words)).code == 0
    assert same_result(run, tmp_path / "whole")
    assert "--resume" in ended.error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [1, 2])
def test_the_installed_program_stops_within_five_seconds_in_the_middle_of_a_training(
    cache, tmp_path, number, workers
):
    run = tmp_path / "run"
    words = ["run", *DIGITS, *LONG, f"workers={workers}", "--quiet", "--out", str(run)]
    with start_program(cache, *words, stderr=subprocess.PIPE) as process:
        until(lambda: (run / "checkpoints" / "round-0000").exists())
        time.sleep(0.3)
        helpers = children(process.pid)
        assert len(helpers) == (2 if workers == 2 else 0)
        sent = time.monotonic()
        process.send_signal(number)
        said = process.communicate(timeout=30)[1]
    assert time.monotonic() - sent < 5
    assert process.returncode == 130
    assert not any(alive(pid) for pid in helpers)
    assert "Traceback" not in said


# -- What a stop must not change --------------------------------------------------------------------------


def test_three_void_rounds_end_a_run_also_if_it_was_stopped_in_between(fedscal: Zygote, tmp_path):
    """The count of void rounds is state too: else a resumed run ends where the other gave up."""
    spoil = (
        "import fedscal.client as c\n"
        "def broken(*a, **k): raise c.Diverged('rigged')\n"
        "import fedscal.drivers.site as s; s.local_update = broken"
    )
    words = [*TINY, "rounds=4", "--quiet", "--no-report"]
    whole = fedscal("run", *words, "--out", tmp_path / "whole", before=spoil)
    assert whole.code == 5
    assert "rigged" in whole.error
    resumed = fedscal("run", "--resume", tmp_path / "whole", "--quiet", "--no-report", before=spoil)
    assert resumed.code == 5
    assert not (tmp_path / "whole" / "summary.json").exists()


def test_resuming_with_other_workers_changes_no_bit(fedscal, cache, tmp_path, digits_run, copy_of):
    run = copy_of(digits_run)
    shutil.rmtree(run / "checkpoints" / "round-0002")
    (run / "summary.json").unlink()
    ended = fedscal("run", "--resume", run, "workers=2", "--quiet", "--no-report")
    assert ended.code == 0, ended.err
    assert summary(run)["weights_sha256"] == summary(digits_run)["weights_sha256"]
    assert rows(run) == rows(digits_run)
