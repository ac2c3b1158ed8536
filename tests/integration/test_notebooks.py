"""The notebooks run from an empty directory, show what they promise, and are stored without outputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from harness import environment
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
PROMISED = {
    "01_own_images": ["verdict: better", "The adapted model is better", "10 predictions", "<iframe"],
    "02_own_loop": ["round 6: accuracy"],
    "03_own_method": ["together +average", "nu=5 +average", "<iframe"],
}
"""What the outputs of each show, as patterns."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def shown(notebook: Any) -> str:
    """Return all that the cells put out."""
    outputs = [one for cell in notebook.cells for one in cell.get("outputs", [])]
    return "\n".join(text for one in outputs for text in (one.get("text", ""), *one.get("data", {}).values()))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_promises(path: Path, tmp_path: Path, shared: Path) -> None:
    notebook = read(path)
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute(env=environment(shared / "cache", TMPDIR=str(tmp_path)))
    text = shown(notebook)
    for pattern in PROMISED[path.stem]:
        assert re.search(pattern, text), pattern
    gains = re.findall(r"([\d.]+)(?: %)? -> +([\d.]+) %", text)
    assert all(float(after) > float(before) for before, after in gains)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = [cell for cell in read(path).cells if cell.cell_type == "code"]
    assert cells
    assert all(cell.outputs == [] and cell.execution_count is None and not cell.metadata for cell in cells)
