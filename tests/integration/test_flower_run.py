"""``flwr run`` on the project's directory, as Flower's users type it."""

from __future__ import annotations

import os
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from harness import environment, program, rows, summary

from fedscal.flower import processes

PROJECT = Path(__file__).parents[2]
SHORT = "clients_per_domain=1 participation=1 rounds=1 local_epochs=1 pretrain_epochs=1"


def app_of(folder: Path) -> dict[str, Any]:
    app: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    return app


def flwr(home: Path, cache: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run one of Flower's commands where its home is."""
    env = environment(cache, **processes.environment(home)) | {"FEDSCAL_CACHE": str(cache)}
    argv = [processes.flower_program("flwr"), *map(str, words)]
    return subprocess.run(argv, env=env, cwd=home.parent, capture_output=True, text=True, check=False)


def test_the_project_and_the_package_are_the_same_app() -> None:
    ours, packaged = app_of(PROJECT), app_of(Path(processes.__file__).parent / "app")
    assert ours.pop("fab-include") == ["pyproject.toml"]
    assert ours == packaged


@pytest.mark.long
def test_the_project_is_an_app_that_carries_no_code(tmp_path: Path) -> None:
    done = flwr(tmp_path / "flwr", tmp_path, "build", "--app", PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = tmp_path.glob("*.fab")
    assert b"server_app.py" not in built.read_bytes()


@pytest.fixture
def flower_home(tmp_path: Path) -> Iterator[Path]:
    """A home for Flower, whose SuperLink, which outlives 'flwr run', is ended."""
    home = tmp_path / "flwr"
    yield home
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(home).encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGTERM)
        except OSError:
            continue


@pytest.mark.long
@pytest.mark.timeout(600)
def test_simulated_by_ray_it_has_the_bits_of_one_machine(
    flower_home: Path, tmp_path: Path, cache: Path
) -> None:
    pytest.importorskip("ray")
    here = tmp_path / "here"
    ended = program(cache, "run", *SHORT.split(), "--out", here, "--no-report", "--quiet")
    assert ended.code == 0, ended.err
    config = f'keys="{SHORT}" out="{tmp_path / "ray"}"'
    done = flwr(flower_home, cache, "run", PROJECT, "--stream", "--run-config", config)
    assert (tmp_path / "ray" / "summary.json").exists(), done.stdout + done.stderr
    assert summary(tmp_path / "ray")["weights_sha256"] == summary(here)["weights_sha256"]
    assert rows(tmp_path / "ray") == rows(here)
