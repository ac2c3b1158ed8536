"""The examples run, as they are or in a few rounds less, and print what they promise."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Zygote, environment

PAGES = {
    "01_quickstart": "runs/*/report.html",
    "02_new_term": "runs/new-term/comparison.html",
    "03_own_backbone": "runs/own-backbone/report.html",
    "04_own_tensors": "runs/own-tensors/report.html",
}
EXAMPLES = [Path(__file__).parents[2] / "examples" / f"{name}.py" for name in PAGES]
OTHERS = {"05_sample_folders"}  # integration/test_tutorials.py


SHORT = """
import runpy, sys, fedscal
real = fedscal.RunSpec.make
small = {{"rounds": 1, "local_epochs": 1, "pretrain_epochs": 1, "workers": 1}}
fedscal.RunSpec.make = lambda **keys: real(**{{**keys, **small}})
sys.argv, sys.path[0] = [{script!r}], {folder!r}
sys.exit(runpy.run_path({script!r}, run_name="__main__") and 0)
"""


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES[0].parent.glob("*.py")} == PAGES.keys() | OTHERS


def promised(script: Path, folder: Path, said: str) -> bool:
    """Whether an example printed an improvement and left its page."""
    printed = re.search(r"average +\d+\.\d % -> +\d+\.\d %", said)
    return bool(printed) and bool(list(folder.glob(PAGES[script.stem])))


@pytest.mark.parametrize(
    "script", [e for e in EXAMPLES if e.stem in {"02_new_term", "04_own_tensors"}], ids=lambda path: path.stem
)
def test_an_example_of_one_round_runs_from_an_empty_directory(
    fedscal: Zygote, script: Path, tmp_path: Path, cache: Path
) -> None:
    ended = fedscal(cwd=tmp_path, before=SHORT.format(script=str(script), folder=str(script.parent)))
    assert ended.code == 0, ended.err
    assert promised(script, tmp_path, ended.out)


@pytest.mark.long
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_from_an_empty_directory(script: Path, tmp_path: Path, cache: Path) -> None:
    command = [sys.executable, str(script)]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment(cache), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert promised(script, tmp_path, result.stdout)
