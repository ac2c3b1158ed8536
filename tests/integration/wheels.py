"""The built wheel, and environments that hold it with its core or some extras and nothing else."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

from tools.requirements import CORE, ROOT, brought_by


def build(folder: Path, source: Path = ROOT) -> None:
    """Build the wheel and the source distribution as ``make wheel`` does: offline, in a second."""
    _call(sys.executable, "-m", "hatchling", "build", "--directory", folder, cwd=source)


def install(wheel: Path, folder: Path, *extras: str) -> None:
    """Make an environment and let pip install the wheel into it, without an index.

    What the core and the extras bring is linked from this environment, so that it takes a second and not
    minutes; pip refuses if the wheel asks for anything else.
    """
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in brought_by(CORE, *extras):
        _link(name, packages)
    wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    _call(*pip, "--no-index", "--no-compile", "--disable-pip-version-check", wanted)


def install_afresh(wheel: Path, folder: Path, *extras: str) -> None:
    """Make an environment as a user does: with pip, from an index, minutes."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    _call(*pip, "--constraint", ROOT / "constraints.txt", f"{wheel}[{','.join(extras)}]")


def _link(name: str, packages: Path) -> None:
    """Link the modules and the metadata of an installed distribution."""
    for entry in {file.parts[0] for file in metadata.files(name) or []} - {"..", "__pycache__"}:
        (packages / entry).symlink_to(str(metadata.distribution(name).locate_file(entry)))


def _call(*words: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
