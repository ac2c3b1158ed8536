"""Programs that belong process_group end process_group, and say why."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedscal.core.errors import DataRefused, TooFewClients, UsageError
from fedscal.flower.launch import parse_error
from fedscal.flower.output import MARK, Output, tell_warnings
from fedscal.flower.presence import Presence
from fedscal.flower.processes import (
    ENDED,
    ProcessEnded,
    RunningProcess,
    SupervisedProcess,
    environment,
    flower_program,
    process_group,
    supervise,
    supervised,
)


def python(code: str, heard: list[str]) -> RunningProcess:
    return RunningProcess([sys.executable, "-c", code], log=heard.append)


def fail_among(started: list[RunningProcess]) -> None:
    with process_group() as programs:
        programs += [python("import time; time.sleep(60)", []) for _ in range(2)]
        started += programs
        raise ValueError("trouble")


def test_none_is_left_running_after_an_error() -> None:
    started: list[RunningProcess] = []
    with pytest.raises(ValueError, match="trouble"):
        fail_among(started)
    assert [running.running for running in started] == [False, False]


def test_one_that_does_not_obey_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscal.flower.processes._GRACE", 0.5)
    heard: list[str] = []
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    with process_group() as programs:
        programs.append(python(stubborn, heard))
        kept = programs[0]
        while not heard:
            assert kept.running
    assert kept.process.returncode == -9


INTERRUPTED = """
import contextlib, sys
from fedscal.flower.processes import RunningProcess, process_group
code = "import time; print('asleep', flush=True); time.sleep(60)"
with contextlib.suppress(KeyboardInterrupt), process_group() as programs:
    part = RunningProcess([sys.executable, "-c", code], log=lambda line: print(line, flush=True))
    programs.append(part)
    part.wait()
print(part.process.returncode)
"""


def test_an_interrupt_from_a_terminal_shows_no_traceback_of_a_part() -> None:
    """A terminal sends Ctrl-C to every process of its foreground group."""
    parent = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    assert parent.stdout
    assert parent.stdout.readline() == "asleep\n"
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.communicate(timeout=60)[0] == f"{-signal.SIGTERM}\n"


def part(code: str, **more: Any) -> SupervisedProcess:
    return SupervisedProcess([sys.executable, "-c", code], pause=0.0, **more)


def test_a_part_that_ends_is_started_again_until_its_lives_are_over(tmp_path: Path) -> None:
    log = tmp_path / "log"
    heard: list[str] = []
    with supervised() as parts:
        parts.append(part("import time; time.sleep(60)"))
        parts.append(part(f"open({str(log)!r}, 'a').write('x'); print('Exit Code: 305')", attempts=3))
        output = Output(heard.append, tmp_path / "log.txt")
        for each in parts:
            each.start(output)
        with pytest.raises(ProcessEnded, match="code 305: the server does not know this site's key"):
            supervise(parts, output)
        steady = parts[0].running
    assert log.read_text() == "xxx"
    kept = output.path.read_text()
    assert kept.count(" Exit Code: 305\n") == 3
    assert kept.count("started: ") == 4
    assert heard[0] == f"log: {output.path}"
    assert not [line for line in heard if "Exit Code" in line or "started: " in line], "that is in the file"
    assert sum("is started again" in line for line in heard) == 2
    assert steady is not None
    assert not steady.running


def test_a_part_that_is_not_healthy_is_ended_and_started_again(tmp_path: Path) -> None:
    heard: list[str] = []
    verdicts = iter([True, False])
    with supervised() as parts:
        parts.append(part("import time; time.sleep(60)", healthy=lambda: next(verdicts, True)))
        output = Output(heard.append, tmp_path / "log.txt")
        first = parts[0].start(output)
        for _ in range(2):
            parts[0].check(output)
        assert first.process.wait(10) == -9
        while parts[0].running is first:
            parts[0].check(output)
        again = parts[0].running
        assert again is not None
        assert again.running
    assert any("has lost its connection" in line for line in heard)


def test_the_words_of_a_run_become_its_error() -> None:
    assert isinstance(parse_error(f"{ENDED} 5: b did not come within 3 s."), TooFewClients)
    assert str(parse_error(f"{ENDED} 3: b has another class list: x")) == "b has another class list: x"
    assert isinstance(parse_error(f"{ENDED} 3: x"), DataRefused)


def test_nothing_is_sent_home_fetched_or_installed(tmp_path: Path) -> None:
    env = environment(tmp_path / "home")
    assert env["FLWR_TELEMETRY_ENABLED"] == "0"
    assert env["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert env["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert env["FLWR_HOME"] == str(tmp_path / "home")


def test_a_program_that_is_not_installed_is_named_with_its_extra() -> None:
    with pytest.raises(UsageError, match=r"fedscal\[flower\]"):
        flower_program("flower-nonsense")


def test_lines_for_people_are_told_and_all_lines_are_kept(tmp_path: Path) -> None:
    heard: list[str] = []
    output = Output(heard.append, tmp_path / "state" / "site.log")
    answered = f"{MARK}round 1: answered after 2.0 s"
    for line in ("INFO: 100 % noise", answered, "POST /v1/control/list-nodes 200"):
        output.pass_on(line)
    output.say("site started")
    assert heard[1:] == ["round 1: answered after 2.0 s", "site started"]
    kept = [line.split(" ", 2)[2] for line in output.path.read_text().splitlines()]
    assert kept == ["INFO: 100 % noise", answered, "site started"]


def test_a_log_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscal.flower.output._LARGEST", 1000)
    output = Output(lambda text: None, tmp_path / "server.log")
    for _ in range(200):
        output.note("x" * 80)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3000


def test_warnings_are_told_in_a_line_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("fedscal")
    before = list(logger.handlers)
    try:
        tell_warnings()
        try:
            raise OSError("no such\nthing")
        except OSError:
            logging.getLogger("fedscal.flower").exception("the request '%s' failed", "train")
        logging.getLogger("fedscal.flower").info("not told")
    finally:
        logger.handlers = before
    assert capsys.readouterr().out == f"{MARK}error: the request 'train' failed: no such\n"


def test_who_is_connected_is_told_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscal.flower.presence._LOOK", 0.0)
    heard: list[str] = []
    seen = iter([[], ["b"], None, ["b"], ["b", "a", "stranger"]])
    presence = Presence(["a", "b"], lambda: next(seen), heard.append)
    for _ in range(5):
        presence.look()
    assert heard == [
        "0 of 2 sites connected; missing: a, b",
        "1 of 2 sites connected: b; missing: a",
        "2 of 2 sites connected: a, b",
    ]
