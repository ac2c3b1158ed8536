"""Thirty steps of somebody's first hour, in one directory, each checked by what it prints."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest
from harness import PYTHON, TINY, Ended, Gate, Zygote, environment, until
from nbclient import NotebookClient

from layouts import drawn_tree

SMALL = ["model=convnet", "trunk=trained", "image_size=32", "batch_size=16"]
SHORT = ["rounds=2", "local_epochs=1", "workers=1"]
PROGRAM = """
import fedscal
run = fedscal.load("runs/mine")
found = fedscal.predict("runs/mine", "sites/north")
print(run, found, found._repr_html_()[:7], sep="\\n")
"""


class Newcomer:
    """Types commands in one directory, and reads what comes back."""

    def __init__(self, fedscal: Zygote, home: Path) -> None:
        self.fedscal, self.home, self.steps = fedscal, home, 0

    def types(self, *words: str, code: int = 0, sees: str) -> Ended:
        """Type a command; it ends with a code and shows a pattern, and never a traceback."""
        self.steps += 1
        return self._seen(self.fedscal("".join(words[:1]), *words[1:], cwd=self.home), code, sees)

    def interrupts(self, *words: str, sees: str) -> None:
        """Type a command and press Ctrl-C after its second round."""
        self.steps += 1
        gate = Gate(self.home / "gate")
        held = gate.before("fedscal.server.rounds", "_round", passing=2)
        child = self.fedscal.start(*words, cwd=self.home, before=held)
        until(lambda: gate.reached)
        child.send(signal.SIGINT)
        gate.open()
        self._seen(child.wait(), 130, sees)

    def _seen(self, ended: Ended, code: int, sees: str) -> Ended:
        said = ended.out + ended.err
        assert ended.code == code, said
        assert "Traceback" not in said
        assert re.search(sees, said, re.DOTALL), said
        return ended


@pytest.fixture
def newcomer(fedscal: Zygote, tmp_path: Path) -> Newcomer:
    return Newcomer(fedscal, tmp_path)


@pytest.mark.long
def test_the_first_hour(newcomer: Newcomer) -> None:
    looks_around(newcomer)
    runs_and_is_interrupted(newcomer)
    brings_folders(newcomer)
    uses_the_model(newcomer)
    works_in_python(newcomer)
    assert newcomer.steps == 30


def looks_around(newcomer: Newcomer) -> None:
    """Help, typing errors, and what there is."""
    newcomer.types("--version", sees=r"fedscal \d+\.\d+")
    newcomer.types("-h", sees=r"Commands:.*  run +adapt a source model")
    newcomer.types("run", "-h", sees=r"Examples:.*fedscal run --resume.*All keys: fedscal keys")
    newcomer.types("rnu", code=2, sees="did you mean 'run'")
    newcomer.types("run", "--rounds", "3", code=2, sees="rounds=3")
    newcomer.types("run", "ruonds=3", code=2, sees="did you mean 'rounds'")
    newcomer.types("keys", "participation", sees=r"participation=0\.3")
    newcomer.types("keys", "--method", "fedsite", sees="source_share")
    newcomer.types("methods", sees="fedsite")
    newcomer.types("doctor", sees="torch")
    newcomer.types("data", "list", sees="digits")


def runs_and_is_interrupted(newcomer: Newcomer) -> None:
    """A run, Ctrl-C, and on with it."""
    begin = ["run", *TINY, "rounds=4", "workers=1", "--out", "runs/a"]
    newcomer.interrupts(*begin, sees=r"^run: runs/a.*fedscal run --resume runs/a")
    newcomer.types("run", "--resume", "runs/a", sees=r"report: runs/a/report\.html")
    newcomer.types("report", "runs/a", sees=r"runs/a/report\.html")
    assert "<h1>" in (newcomer.home / "runs/a/report.html").read_text()


def brings_folders(newcomer: Newcomer) -> None:
    """Folders of images, a broken one among them, and sites whose images lie in folders of years."""
    photos = drawn_tree(newcomer.home / "photos", ("Art", "Photo"), images=12)
    newcomer.types("data", "check", "photos", sees=r"Photo +│ 36 +│ 3")
    broken = photos / "Photo" / "Mug" / "cut.jpg"
    broken.write_bytes(b"\xff\xd8\xff")
    newcomer.types("data", "check", "photos", code=3, sees=r"cut\.jpg")
    words = ["run", "benchmark=photos", "source=Art", *SMALL, *SHORT, "pretrain_epochs=1"]
    newcomer.types(*words, "--out", "runs/broken", code=3, sees=r"1 of 37 files cannot be used.*cut\.jpg")
    broken.unlink()
    newcomer.types("init", "photos", sees=r"fedscal\.toml")
    train = ["pretrain", "--data", "photos/Art", *SMALL, "pretrain_epochs=20", "--out", "model"]
    newcomer.types(*train, sees="held-out source images")
    for site, label in {"north": "Bed", "south": "Mug"}.items():
        shutil.copytree(photos / "Photo" / label, newcomer.home / "sites" / site / "2024")
        shutil.copytree(photos / "Photo" / "Bike", newcomer.home / "sites" / site / "2025")
    newcomer.types("data", "show", "sites", sees=r"sites\.png")
    there = ["run", "source_model=model", "clients=sites", *SHORT, "--out", "runs/mine"]
    newcomer.types(*there, sees=r"^run: runs/mine.*(better|[Uu]nsure|[Dd]o not use).*fedscal audit runs/mine")
    newcomer.types("run", "source_model=model", "clients=nothere", code=2, sees="there is no such folder")


def uses_the_model(newcomer: Newcomer) -> None:
    """Audit, predict, export twice, compare."""
    shutil.copytree(newcomer.home / "photos" / "Photo", newcomer.home / "checked" / "north")
    newcomer.types("audit", "runs/mine", "checked", sees=r"36.*(better|worse|[Nn]o difference)")
    newcomer.types("predict", "runs/mine", "sites/north", "--out", "answers.csv", sees=r"answers\.csv")
    newcomer.types("predict", "runs/mine", "nothere", code=3, sees="there is no file or folder nothere")
    export = ["--format", "safetensors", "--out", "given.safetensors"]
    newcomer.types("export", "runs/mine", *export, sees=r"given\.safetensors")
    newcomer.types("export", "runs/a", *export, code=2, sees=r"given\.safetensors.*--force")
    grid = ["compare", *TINY, "methods=source-only,fedloa", "seeds=0,1", "rounds=1", "--out", "runs/grid"]
    newcomer.types(*grid, sees=r"^runs: runs/grid.*FedLoA.*comparison\.html")


def works_in_python(newcomer: Newcomer) -> None:
    """The same run from a program and from a notebook."""
    env = environment(newcomer.fedscal.cache)
    asked = subprocess.run(
        [PYTHON, "-c", PROGRAM], cwd=newcomer.home, env=env, capture_output=True, text=True, check=False
    )
    assert "predictions" in asked.stdout, asked.stderr
    newcomer.steps += 1
    notebook: Any = nbformat.v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[nbformat.v4.new_code_cell("import fedscal\nfedscal.predict('runs/mine', 'sites/south')")]  # type: ignore[no-untyped-call]
    )
    where = {"metadata": {"path": str(newcomer.home)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute(env=env)
    assert "text/html" in notebook.cells[0].outputs[-1]["data"]
    newcomer.steps += 1
