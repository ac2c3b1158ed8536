"""The notebooks run from an empty directory, show what they promise, and are stored without outputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from harness import Zygote, environment
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
PROMISED = {
    "01_own_images": ["verdict: ", "10 predictions", "<iframe"],
    "02_own_loop": ["round 6: accuracy"],
    "03_own_method": ["together +average", "nu=5 +average", "<iframe"],
}
"""What the outputs of each show, as patterns."""
AFTER_ALL_ROUNDS = {"01_own_images": ["verdict: better", "The adapted model is better"]}
"""What they show too if no round was left out."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def shown(notebook: Any) -> str:
    """Return all that the cells put out."""
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    return "\n".join(text for one in outputs for text in (one.get("text", ""), *one.get("data", {}).values()))


IN_A_SHELL = """
import sys, fedscal, nbformat
from IPython.core.interactiveshell import InteractiveShell
real = fedscal.RunSpec.make
small = {{"rounds": 1, "local_epochs": 1, "pretrain_epochs": 1}}
fedscal.RunSpec.make = lambda **keys: real(**{{**keys, **small}})
shell = InteractiveShell.instance()
for cell in nbformat.read({path!r}, as_version=4).cells:
    if cell.cell_type == "code":
        ended = shell.run_cell(cell.source)
        ended.raise_error()
        print(*shell.display_formatter.format(ended.result)[0].values())
sys.exit()
"""
"""Runs a notebook's cells as a kernel does, in a few rounds less, in the forked program."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebooks_cells_run_and_show_what_they_promise(
    fedscal: Zygote, path: Path, tmp_path: Path
) -> None:
    own = {"TMPDIR": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ipython")}
    ended = fedscal(cwd=tmp_path, env=own, before=IN_A_SHELL.format(path=str(path)))
    assert ended.code == 0, ended.err
    for pattern in PROMISED[path.stem]:
        assert re.search(pattern, ended.out), pattern


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_promises(path: Path, tmp_path: Path, shared: Path) -> None:
    notebook = read(path)
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=environment(shared / "cache", TMPDIR=str(tmp_path)))
    text = shown(notebook)
    for pattern in (*PROMISED[path.stem], *AFTER_ALL_ROUNDS.get(path.stem, ())):
        assert re.search(pattern, text), pattern
    gains = re.findall(r"([\d.]+)(?: %)? -> +([\d.]+) %", text)
    assert all(float(after) > float(before) for before, after in gains)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None and not cell.metadata for cell in cells)
