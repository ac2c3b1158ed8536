"""Programs that belong process_group end process_group, and say why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedscal.core.errors import DataRefused, TooFewClients, UsageError
from fedscal.flower.launch import parse_error
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
        for each in parts:
            each.start(heard.append)
        with pytest.raises(ProcessEnded, match="code 305: the server does not know this site's key"):
            supervise(parts, heard.append)
        steady = parts[0].running
    assert log.read_text() == "xxx"
    assert heard.count("Exit Code: 305") == 3
    assert steady is not None
    assert not steady.running


def test_a_part_that_is_not_healthy_is_ended_and_started_again(tmp_path: Path) -> None:
    heard: list[str] = []
    verdicts = iter([True, False])
    with supervised() as parts:
        parts.append(part("import time; time.sleep(60)", healthy=lambda: next(verdicts, True)))
        first = parts[0].start(heard.append)
        for _ in range(2):
            parts[0].check(heard.append)
        assert first.process.wait(10) == -9
        while parts[0].running is first:
            parts[0].check(heard.append)
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
