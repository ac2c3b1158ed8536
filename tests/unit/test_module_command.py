"""The command that starts another Python process of the program's own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fedscal.core.module_command import module_command


@pytest.mark.parametrize(
    ("hidden", "found"),
    [(True, 0), (False, 1)],  # without the switch the file is found: the test can fail
)
def test_a_file_in_the_working_directory_does_not_hide_a_module_of_pythons(
    tmp_path: Path, hidden: bool, found: int
) -> None:
    (tmp_path / "calendar.py").write_text("raise SystemExit(1)")
    command = module_command("calendar", 2026)
    command = command if hidden else [word for word in command if word != "-P"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == found
