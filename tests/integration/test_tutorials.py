"""The tutorials, run as they are printed: the environment makes network and rounds small, the words stay."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from harness import PYTHON, Zygote, environment, summary

from documented import ROOT, commands, of_makefile

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
SMALL = {
    "FEDSCAL_MODEL": "convnet",
    "FEDSCAL_TRUNK": "trained",
    "FEDSCAL_IMAGE_SIZE": "32",
    "FEDSCAL_PRETRAIN_EPOCHS": "1",
    "FEDSCAL_ROUNDS": "1",
    "FEDSCAL_LOCAL_EPOCHS": "1",
    "FEDSCAL_WORKERS": "1",
}


def printed(name: str) -> list[tuple[str, ...]]:
    """Return what a tutorial lets a reader type of the program."""
    found = commands(ROOT / "docs" / "tutorials" / f"{name}.md")
    return [one.words[1:] for one in found if one.words[0] == "fedscal" and not (one.inline or one.why_not)]


def test_the_first_run(fedscal: Zygote, tmp_path: Path, cache: Path) -> None:
    (demo,) = (one.words[1:] for one in of_makefile() if one.words[1] == "run")
    for words in (demo, *printed("first-run")):
        ended = fedscal(*words, cwd=tmp_path, env=SMALL, timeout=500)
        assert ended.code == 0, (words, ended.err)
    first, again = (summary(tmp_path / "runs" / name)["weights_sha256"] for name in ("demo", "again"))
    assert first == again
    assert (tmp_path / "comparison.html").exists()


def test_own_images(fedscal: Zygote, tmp_path: Path, cache: Path) -> None:
    script = ROOT / "examples" / "05_sample_folders.py"
    subprocess.run([PYTHON, str(script)], cwd=tmp_path, env=environment(cache), check=True)
    for words in printed("own-images"):
        ended = fedscal(*words, cwd=tmp_path, env=SMALL, timeout=500)
        assert ended.code == 0, (words, ended.err)
    assert len((tmp_path / "answers.csv").read_text().splitlines()) == 1 + 100
    assert json.loads((tmp_path / "runs" / "mine" / "audit.json").read_text())["verdict"]
    assert (tmp_path / "font.onnx").exists()
    assert (tmp_path / "font.md").exists()


def test_real_machines(fedscal: Zygote, tmp_path: Path) -> None:
    for words in printed("real-machines"):
        ended = fedscal(*words, cwd=tmp_path, timeout=500)
        assert ended.code == 0, (words, ended.err)
    assert (tmp_path / "keys" / "font" / "key").exists()
