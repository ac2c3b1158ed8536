"""The examples run as a reader would run them, and print what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import environment

PAGES = {
    "01_quickstart": "runs/*/report.html",
    "02_new_term": "runs/new-term/comparison.html",
    "03_own_backbone": "runs/own-backbone/report.html",
}
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_from_an_empty_directory(script: Path, tmp_path: Path, cache: Path) -> None:
    command = [sys.executable, str(script)]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment(cache), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert re.search(r"average +\d+\.\d % -> +\d+\.\d %", result.stdout)
    assert list(tmp_path.glob(PAGES[script.stem]))
