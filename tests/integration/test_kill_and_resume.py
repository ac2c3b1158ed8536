"""A run that is stopped at any moment goes on to the same bits as one that never was."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from harness import (
    DIGITS,
    TINY,
    Copy,
    Ended,
    Gate,
    Words,
    Zygote,
    alive,
    children,
    judged,
    rows,
    same_result,
    start_program,
    start_tiny,
    until,
)

from fedscal.experiment.records import ClientRecord
from fedscal.experiment.run_directory import RunDirectory

LONG = ["rounds=50", "local_epochs=10000", "workers=1"]  # its first round would take many minutes


def _some(count: int, share: float) -> list[int]:
    """Return a share of 1 to ``count``, always the same, spread over all by chance."""
    return sorted(random.Random(count).sample(range(1, count + 1), math.ceil(share * count)))


def _unfinished(run: Path) -> list[Path]:
    """Return the hidden files in which a writer that was killed has left something."""
    return [path for path in run.rglob(".*") if path.name != ".lock"]


def _begin_or_resume(run: Path, *words: str) -> list[str]:
    """Return the command that a user would give next."""
    going_on = ["--resume", str(run)] if (run / "spec.toml").exists() else [*words, "--out", str(run)]
    return ["run", *going_on, "--quiet", "--no-report"]


# -- SIGKILL ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.08, pytest.param(1.0, marks=pytest.mark.long)])
def test_a_kill_at_any_write_leaves_a_run_that_ends_with_the_same_bits(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path], share: float
) -> None:
    """Every change of the files is a place to die: rename, unlink, mkdir, and what was written before it.

    FedMOON writes all that any method writes, its clients' memories too. Every reply of a round is on disk,
    as those of many clients are.
    """
    words = [*TINY, "method=fedmoon"]
    spooled = "from fedscal.core.spool import Spool; Spool.__init__.__defaults__ = (None, 0)"
    whole = fedscal.start(*_begin_or_resume(tmp_path / "whole", *words), die_at=10**9, before=spooled)
    assert whole.wait().code == 0
    assert whole.changes > 30
    broken, left = [], 0
    for point in _some(whole.changes, share):
        run = tmp_path / "run"
        killed = fedscal(*_begin_or_resume(run, *words), die_at=point, before=spooled)
        assert killed.code == -signal.SIGKILL
        left += bool(_unfinished(run))
        resumed = fedscal(*_begin_or_resume(run, *words), before=spooled)
        if resumed.code != 0 or not same_result(run, tiny_runs["fedmoon"]) or _unfinished(run):
            broken.append((point, resumed.code, resumed.err, _unfinished(run)))
        shutil.rmtree(run)
    assert broken == []
    assert left > 10 * share, "else nothing was there to be removed"


def _timeless_clients(run: Path) -> list[dict[str, ClientRecord]]:
    """Return the clients of every round, wherever they are written, without what a clock says."""
    rounds = RunDirectory(run).rounds()
    return [{c: replace(row, seconds=0.0) for c, row in one.clients.items()} for one in rounds]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.15, pytest.param(1.0, marks=pytest.mark.long)])
def test_a_kill_at_any_write_of_many_clients_leaves_the_same_columns(
    fedscal: Zygote, tmp_path: Path, share: float
) -> None:
    """Round 0 and 3 are judged by six clients, round 2 by four, round 1 by nobody: two trained in it."""
    words = [*TINY, "method=fedloa", "judge_clients=4", "judge_every=2"]
    many = "import fedscal.experiment.client_table as table; table.MANY = 3"
    assert fedscal(*_begin_or_resume(tmp_path / "lines", *words)).code == 0
    whole = fedscal.start(*_begin_or_resume(tmp_path / "whole", *words), die_at=10**9, before=many)
    assert whole.wait().code == 0
    files = ["round-0000.npz", "round-0002.npz", "round-0003.npz"]
    assert sorted(path.name for path in (tmp_path / "whole" / "clients").iterdir()) == files
    expected = _timeless_clients(tmp_path / "lines")
    assert [len(clients) for clients in expected] == [6, 2, len(expected[2]), 6]
    assert _timeless_clients(tmp_path / "whole") == expected
    broken = []
    for point in _some(whole.changes, share):
        run = tmp_path / "run"
        assert fedscal(*_begin_or_resume(run, *words), die_at=point, before=many).code == -signal.SIGKILL
        resumed = fedscal(*_begin_or_resume(run, *words), before=many)
        same = resumed.code == 0 and same_result(run, tmp_path / "whole")
        if not same or _timeless_clients(run) != expected or _unfinished(run):
            broken.append((point, resumed.code, resumed.err, _unfinished(run)))
        shutil.rmtree(run)
    assert broken == []


def test_damaged_columns_are_refused_with_the_name_of_their_file(fedscal: Zygote, tmp_path: Path) -> None:
    many = "import fedscal.experiment.client_table as table; table.MANY = 3"
    run = tmp_path / "run"
    assert fedscal(*_begin_or_resume(run, *TINY, "method=fedloa", "rounds=2"), before=many).code == 0
    (run / "summary.json").unlink()
    (run / "clients" / "round-0000.npz").write_bytes(b"something else")
    ended = fedscal("run", "--resume", run, "--quiet", "--no-report", before=many)
    assert ended.code == 4
    assert "clients/round-0000.npz is not what it was when the line was written" in ended.err
    assert fedscal("report", run).code == 0
    assert "the clients of round 0 were left out" in (run / "report.html").read_text()


def test_shared_batches_change_no_answer(fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path]) -> None:
    words = [*TINY, "method=fedscal", "judge_together=true"]
    assert fedscal(*_begin_or_resume(tmp_path / "run", *words)).code == 0
    accuracies = [line["accuracy"] for line in rows(tmp_path / "run")]
    assert accuracies == [line["accuracy"] for line in rows(tiny_runs["fedscal"])]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, pytest.param(1.0, marks=pytest.mark.long)])
def test_a_kill_while_the_cache_is_built_leaves_one_that_is_whole_or_built_again(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path], share: float
) -> None:
    short = [*TINY, "pretrain_epochs=2"]
    words = [*short, "method=fedscal", "rounds=1", "--quiet", "--no-report", "--out"]
    assert fedscal("run", *words, tmp_path / "expected").code == 0
    pretrain = ["pretrain", *short, "--quiet"]
    whole = fedscal.start(*pretrain, cache=tmp_path / "whole", die_at=10**9)
    assert whole.wait().code == 0
    assert whole.changes > 15
    for point in _some(whole.changes, share):
        cache = tmp_path / f"cache-{point}"
        assert fedscal(*pretrain, cache=cache, die_at=point).code == -signal.SIGKILL
        assert fedscal("run", *words, cache / "run", cache=cache).code == 0
        assert same_result(cache / "run", tmp_path / "expected"), point
        assert not list(cache.rglob(".*.fedscal-tmp")), point


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedscal", "fedmoon"])
def test_kills_at_random_moments_of_a_run_leave_the_same_bits(
    fedscal: Zygote, tmp_path: Path, method: str
) -> None:
    """Ten kills of one run, spread over its life after the imports, every second one after a checkpoint."""
    words = [*TINY, f"method={method}", "rounds=12", "participation=0.6"]
    started = time.monotonic()
    assert fedscal(*_begin_or_resume(tmp_path / "whole", *words)).code == 0
    life = time.monotonic() - started
    moments, run, kills, late = random.Random(7), tmp_path / "run", 0, 0
    while kills < 10:
        child = fedscal.start(*_begin_or_resume(run, *words))
        if kills % 2:
            until(lambda: any((run / "checkpoints").glob("round-*")))
        time.sleep(moments.uniform(0, 0.7 * life))
        child.send(signal.SIGKILL)
        if child.wait().code == -signal.SIGKILL:
            kills += 1
            late += any((run / "checkpoints").glob("round-*"))
        else:  # it was faster: begin anew
            assert same_result(run, tmp_path / "whole")
            shutil.rmtree(run)
    assert late >= 5
    assert fedscal(*_begin_or_resume(run, *words)).code == 0
    assert same_result(run, tmp_path / "whole")


@pytest.mark.long
def test_kills_of_the_installed_program_from_its_first_moment_on_leave_the_same_bits(
    fedscal: Zygote, cache: Path, tmp_path: Path
) -> None:
    words = [*DIGITS, "method=fedmoon", "participation=0.15"]  # enough for a client to come twice
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


def test_a_line_that_a_kill_cut_off_is_written_again(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
    run = copy_of(tiny_runs["fedmoon"])
    metrics = run / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(lines[:-1]) + lines[-1][:100])
    shutil.rmtree(run / "checkpoints" / "round-0003")
    (run / "summary.json").unlink()
    assert fedscal("run", "--resume", run, "--quiet", "--no-report").code == 0
    assert same_result(run, tiny_runs["fedmoon"])


def test_no_worker_outlives_a_killed_parent(fedscal: Zygote, tmp_path: Path) -> None:
    words: Words = [*TINY, *LONG, "workers=2", "--quiet", "--out", tmp_path / "run"]
    child = fedscal.start("run", *words)
    until(lambda: judged(tmp_path / "run", 0))
    workers = children(child.pid)
    assert len(workers) == 2
    child.send(signal.SIGKILL)
    assert child.wait().code == -signal.SIGKILL
    until(lambda: not any(alive(worker) for worker in workers))


def _kill_a_worker_at(fedscal: Zygote, gate: Gate, place: tuple[str, str], run: Path) -> Ended:
    """Do what the kernel does when memory is short: end one of two workers while it does this."""
    words = [*TINY, "clients_per_domain=1", "participation=1", "rounds=1", "workers=2"]
    held = {"TEST_BEFORE": gate.before(*place)}
    child = fedscal.start("run", *words, "--quiet", "--no-report", "--out", run, env=held)
    until(lambda: gate.reached)
    victim = gate.reached[0]
    assert victim in children(child.pid)
    os.kill(victim, signal.SIGKILL)
    until(lambda: not alive(victim))
    gate.open()
    return child.wait()


@pytest.mark.long
def test_a_worker_that_dies_costs_its_client_one_round_and_not_the_run(
    fedscal: Zygote, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = _kill_a_worker_at(
        fedscal, Gate(tmp_path / "gate"), ("fedscal.runtime.service", "local_update"), run
    )
    assert ended.code == 0, ended.err
    assert len(rows(run)[1]["participants"]) == 2
    assert len(rows(run)[1]["failures"]) == 1
    assert "worker process ended" in next(iter(rows(run)[1]["failures"].values()))


@pytest.mark.long
def test_a_worker_that_dies_while_it_judges_does_not_end_the_run_as_a_bug(
    fedscal: Zygote, tmp_path: Path
) -> None:
    place = ("fedscal.runtime.service", "ClientService.evaluate")
    ended = _kill_a_worker_at(fedscal, Gate(tmp_path / "gate"), place, tmp_path / "run")
    assert ended.code != 1, ended.err
    assert "Traceback" not in ended.err


# -- Ctrl-C and SIGTERM -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "number"), [("fedscal", signal.SIGINT), ("fedmoon", signal.SIGTERM)])
def test_an_interrupted_run_says_how_to_go_on_and_goes_on_to_the_same_bits(
    fedscal: Zygote, tmp_path: Path, method: str, number: signal.Signals
) -> None:
    words = [*TINY, f"method={method}", "rounds=4"]
    assert fedscal(*_begin_or_resume(tmp_path / "whole", *words)).code == 0
    run, last = tmp_path / "run", Gate(tmp_path / "gate").before("fedscal.server.rounds", "_round", passing=3)
    child = fedscal.start(*_begin_or_resume(run, *words), before=last)
    until(lambda: judged(run, 1))
    child.send(number)
    ended = child.wait()
    assert ended.code == 128 + number
    assert not (run / "summary.json").exists()
    assert fedscal(*_begin_or_resume(run, *words)).code == 0
    assert same_result(run, tmp_path / "whole")
    assert ended.error == f"interrupted. Go on with it: fedscal run --resume {run}\n"


def test_a_run_that_was_not_begun_when_it_was_interrupted_is_not_to_be_resumed(
    fedscal: Zygote, tmp_path: Path
) -> None:
    gate = Gate(tmp_path / "gate")
    held = gate.before("fedscal.experiment.run", "RunDirectory.begin")
    child = fedscal.start("run", *TINY, "--out", tmp_path / "run", before=held)
    until(lambda: gate.reached)
    child.send(signal.SIGINT)
    ended = child.wait()
    assert ended.code == 130
    assert ended.error == "interrupted. Repeat the command to go on.\n"
    assert ended.out.splitlines()[0] == f"run: {tmp_path / 'run'}"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_of_its_own_stops_in_the_middle_of_a_training(
    cache: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    with start_tiny(cache, "run", *TINY, *LONG, "--quiet", "--out", run, stderr=subprocess.PIPE) as process:
        until(lambda: judged(run, 0))
        time.sleep(0.3)
        process.send_signal(number)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 128 + number
    assert "Traceback" not in said
    assert len(rows(run)) == 1, "it did not wait for the round"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_a_library_swallows_is_not_lost(
    fedscal: Zygote, tmp_path: Path, number: signal.Signals
) -> None:
    swallow = (
        "from fedscal.client.descent import Descent\n"
        "real, heard = Descent.step, []\n"
        "def descend(*args):\n"
        "    try:\n"
        "        real(*args)\n"
        "        __import__('time').sleep(0.2)\n"
        "    except BaseException as error:\n"
        "        heard.append(error)\n"
        "        if len(heard) > 1: raise\n"
        "Descent.step = descend"
    )
    run = tmp_path / "run"
    child = fedscal.start("run", *TINY, *LONG, "--quiet", "--out", run, before=swallow)
    until(lambda: judged(run, 0))
    time.sleep(0.3)
    child.send(number)
    assert child.wait().code == 128 + number
    assert len(rows(run)) == 1, "it did not wait for the round"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_with_workers_stops_with_them_in_the_middle_of_a_training(
    fedscal: Zygote, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    child = fedscal.start("run", *TINY, *LONG, "workers=2", "--quiet", "--out", run)
    until(lambda: judged(run, 0))
    time.sleep(0.3)
    helpers = children(child.pid)
    assert len(helpers) == 2
    child.send(number)
    ended = child.wait()
    assert ended.code == 128 + number
    assert not any(alive(pid) for pid in helpers)
    assert "Traceback" not in ended.err
    assert len(rows(run)) == 1, "it did not wait for the round"


@pytest.mark.long
def test_a_signal_to_a_run_and_its_workers_fails_no_client_and_the_run_goes_on(
    fedscal: Zygote, tmp_path: Path, tiny_runs: dict[str, Path]
) -> None:
    """A service manager sends SIGTERM to every process of a run."""
    run, words = tmp_path / "run", [*TINY, "method=fedmoon", "workers=2", "--quiet", "--no-report"]
    gate = Gate(tmp_path / "gate")
    held = {"TEST_BEFORE": gate.before("fedscal.runtime.service", "local_update")}
    child = fedscal.start("run", *words, "--out", run, env=held)
    until(lambda: len(gate.reached) == 2)
    helpers = children(child.pid)
    for pid in [*helpers, child.pid]:  # the workers first, which is the worst order
        os.kill(pid, signal.SIGTERM)
    assert child.wait().code == 143
    until(lambda: not any(alive(pid) for pid in helpers))
    assert len(rows(run)) == 1
    assert fedscal("run", "--resume", run, "workers=1", "--quiet", "--no-report").code == 0
    assert same_result(run, tiny_runs["fedmoon"])


@pytest.mark.long
def test_a_comparison_that_is_terminated_ends_its_runs_and_says_how_to_go_on(
    fedscal: Zygote, tmp_path: Path
) -> None:
    child = fedscal.start("compare", *TINY, *LONG, "seeds=0,1", "--jobs", "2", "--out", tmp_path)
    until(lambda: sum(judged(run, 0) for run in tmp_path.iterdir()) == 2)
    runs = children(child.pid)
    assert len(runs) == 2
    child.send(signal.SIGTERM)
    ended = child.wait()
    assert ended.code == 143
    assert "repeating" in ended.error
    until(lambda: not any(alive(pid) for pid in runs))


# -- What a stop must not change --------------------------------------------------------------------------


def test_three_void_rounds_end_a_run_also_if_it_was_stopped_in_between(
    fedscal: Zygote, tmp_path: Path
) -> None:
    """The count of void rounds is state too: else a resumed run ends where the other gave up."""
    spoil = (
        "import fedscal.client.training as c\n"
        "def broken(*a, **k): raise c.Diverged('rigged')\n"
        "import fedscal.runtime.service as s; s.local_update = broken"
    )
    words = [*TINY, "rounds=4", "--quiet", "--no-report"]
    whole = fedscal("run", *words, "--out", tmp_path / "whole", before=spoil)
    assert whole.code == 5
    assert "rigged" in whole.error
    resumed = fedscal("run", "--resume", tmp_path / "whole", "--quiet", "--no-report", before=spoil)
    assert resumed.code == 5
    assert not (tmp_path / "whole" / "summary.json").exists()


@pytest.mark.long
def test_resuming_with_other_workers_changes_no_bit(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
    run = copy_of(tiny_runs["fedmoon"])
    shutil.rmtree(run / "checkpoints" / "round-0003")
    (run / "summary.json").unlink()
    ended = fedscal("run", "--resume", run, "workers=2", "--quiet", "--no-report")
    assert ended.code == 0, ended.err
    assert len(rows(run)[3]["participants"]) == 2
    assert same_result(run, tiny_runs["fedmoon"])
