"""The examples run as a reader would run them, and print what they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_from_an_empty_directory(script: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "FEDSCAL_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"average +\d+\.\d % -> +\d+\.\d %", result.stdout)
    assert list(tmp_path.glob("runs/*/report.html"))
