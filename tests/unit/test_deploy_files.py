"""The files of deploy/: units that systemd accepts, a container file that is whole, commands that exist.

There is no container engine where these tests run. The images were built and started once by hand, with
buildah on a Debian with Python in the place of the Python image.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tools.requirements import ROOT, declared

from understood import understand

DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
PROGRAM = "/opt/fedscal/bin/fedscal"
EXPOSURE = 2.0
"""Of 10, at most, by ``systemd-analyze security``."""
KNOWN = {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER"}
KNOWN |= {"VOLUME", "WORKDIR"}
IN_THE_VENV = {"flower", "report", "onnx", "efficientnet"}
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")


def value(unit: Path, key: str) -> str:
    """Return what a unit says of a key, in one line."""
    (found,) = re.findall(rf"^{key}=(.*)$", unit.read_text().replace("\\\n", " "), re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    program, *words = shlex.split(value(unit, "ExecStart"))
    assert program == PROGRAM
    understand(words)
    state = value(unit, "WorkingDirectory")
    assert state == f"/var/lib/{value(unit, 'StateDirectory')}"
    assert words[words.index("--state") + 1].startswith(state)
    assert f"FEDSCAL_CACHE={state}/cache" in value(unit, "Environment")


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_accepts_a_unit_and_finds_it_closed(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name  # the program is not installed where it will be
    copy.write_text(unit.read_text().replace(PROGRAM, sys.executable))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    words = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(copy)]
    rated = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    (level,) = re.findall(r"Overall exposure level.*: ([\d.]+)", rated)
    assert float(level) <= EXPOSURE


@dataclass(frozen=True)
class Stage:
    """A stage of a container file: what it begins from, its name, and its instructions."""

    base: str
    name: str
    lines: tuple[tuple[str, str], ...]

    def last(self, instruction: str) -> str:
        """Return the last value of an instruction."""
        return [text for name, text in self.lines if name == instruction][-1]


def stages() -> dict[str, Stage]:
    """Read the container file: stages by name."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    pairs = [line.split(maxsplit=1) for line in text.replace("\\\n", " ").splitlines() if line]
    found: dict[str, Stage] = {}
    for instruction, rest in pairs:
        assert instruction in KNOWN, instruction
        if instruction == "FROM":
            base, _, name = rest.split()
            found[name] = Stage(base, name, found[base].lines if base in found else ())
        elif found:
            name, stage = found.popitem()
            found[name] = Stage(stage.base, name, (*stage.lines, (instruction, rest)))
    return found


def test_nobody_is_root_in_an_image_and_nothing_but_the_wheels_is_inside() -> None:
    found = stages()
    assert list(found) == ["install", "installed", "server", "site"]
    for name in ("server", "site"):
        assert found[name].last("USER") == "10001:10001"
        assert [text for instruction, text in found[name].lines if instruction == "COPY"] == [
            "--from=install /opt/fedscal /opt/fedscal"
        ]
    assert found["install"].last("COPY") == ". /wheels"  # the context is dist/wheelhouse


def test_an_image_installs_the_extras_of_the_wheelhouse_without_an_index() -> None:
    installed = stages()["install"].last("RUN")
    assert "--no-index --find-links /wheels" in installed
    (wheelhouse,) = re.findall(r"wheelhouse '\.\[([\w,]+)\]'", (ROOT / "Makefile").read_text())
    (image,) = re.findall(r"'fedscal\[([\w,]+)\]'", installed)
    assert set(image.split(",")) == set(wheelhouse.split(",")) == IN_THE_VENV <= declared().keys()


@pytest.mark.parametrize("name", ["server", "site"])
def test_an_image_starts_a_command_that_exists(name: str) -> None:
    stage = stages()[name]
    words: list[str] = json.loads(stage.last("ENTRYPOINT")) + json.loads(stage.last("CMD"))
    assert words[:3] == ["fedscal", "flower", name]
    if "--help" not in words:
        understand(words[1:])


def test_the_health_of_a_server_is_its_port() -> None:
    server = stages()["server"]
    command = json.loads(server.last("HEALTHCHECK").partition("CMD ")[2])
    assert command[0] == "python"
    assert f"('127.0.0.1', {server.last('EXPOSE')})" in command[2]
    compile(command[2], "healthcheck", "exec")
