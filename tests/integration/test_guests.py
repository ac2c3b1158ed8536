"""Parts from outside (tests/guests, installed nowhere) behave like those inside, everywhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
from harness import Ended, program, rows, same_result, start_program, summary, until
from PIL import Image

from fedscal.core.user_code import ENTRY_POINTS

GUESTS = Path(__file__).parents[1] / "guests"
PLUGIN = ["plugins=guest_parts", "--allow-code"]
SPEC = [
    "method=guest",
    "benchmark=corners",
    "model=corner-mlp",
    "nu_guest=0.2",
    "participation=1",
    "batch_size=8",
]
TOLD = ["--quiet", "--no-report"]


@pytest.fixture
def guest(tmp_path: Path, cache: Path) -> Any:
    """The installed program in a directory that holds the guest's module and one named like Python's."""
    shutil.copy(GUESTS / "guest_parts.py", tmp_path)
    (tmp_path / "queue.py").write_text("raise SystemExit('not the queue of the standard library')\n")

    def run(*words: str | Path, **how: Any) -> Ended:
        return program(cache, *words, cwd=tmp_path, **how)

    return run


@pytest.mark.long
def test_a_guest_trains_in_workers_is_resumed_reported_and_used(
    guest: Any, tmp_path: Path, cache: Path
) -> None:
    ended = guest("run", *SPEC, *PLUGIN, "workers=2", *TOLD, "--out", "two")
    assert ended.code == 0, ended.err
    with start_program(
        cache, "run", *SPEC, *PLUGIN, "workers=1", *TOLD, "--out", "cut", cwd=tmp_path
    ) as process:
        until(
            lambda: (tmp_path / "cut" / "checkpoints" / "round-0001").exists() or process.poll() is not None
        )
        process.kill()
    refused = guest("run", "--resume", "cut", *TOLD)
    assert (refused.code, "plugins=guest_parts would run code" in refused.error) == (2, True)
    ended = guest("run", "--resume", "cut", "--allow-code", *TOLD)
    assert ended.code == 0, ended.err
    assert same_result(tmp_path / "cut", tmp_path / "two")
    assert guest("report", "two").code == 0
    Image.new("L", (32, 32), 90).save(tmp_path / "a.png")
    refused = guest("predict", "two", "a.png")
    assert (refused.code, "--allow-code" in refused.error) == (2, True)
    ended = guest("predict", "two", "a.png", "--allow-code")
    assert (ended.code, "corner" in ended.out) == (0, True)


@pytest.mark.long
def test_a_guest_is_compared_beside_methods_from_inside(guest: Any, tmp_path: Path) -> None:
    ended = guest(
        "compare", *SPEC[1:], *PLUGIN, "methods=guest,fedloa", "source=day", "--jobs", "2", "--out", "grid"
    )
    assert ended.code == 0, ended.err
    assert "Guest" in ended.out
    theirs, ours = (rows(path.parent) for path in sorted(tmp_path.glob("grid/*/summary.json")))
    assert theirs[-1]["accuracy"] != ours[-1]["accuracy"], "its term is at work"


def test_the_recipe_for_parts_from_outside_works_as_it_is_printed(tmp_path: Path, cache: Path) -> None:
    page = (GUESTS.parents[1] / "CONTRIBUTING.md").read_text()
    (source,) = [
        block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "my_parts.py" in block
    ]
    (command,) = re.findall(r"^    fedscal (run plugins=my_parts .*)$", page, re.MULTILINE)
    (tmp_path / "my_parts.py").write_text(textwrap.dedent(source))
    ended = program(cache, *shlex.split(command), cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert summary(tmp_path / "runs" / "mine")["method"] == "mine"


def test_a_guest_is_refused_without_permission_and_is_not_imported(guest: Any, tmp_path: Path) -> None:
    (tmp_path / "guest_parts.py").write_text("open('trace', 'w')\n")
    ended = guest("run", *SPEC, PLUGIN[0], "--out", "made")
    assert (ended.code, "plugins=guest_parts would run code" in ended.error) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["guest_parts.py", "queue.py"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nowhere", "plugins=broken: broken cannot be imported (No module named 'nowhere')"),
        (
            (GUESTS / "clashing_parts.py").read_text(),
            "Crowd declares the option 'neighbours' as float at least 0",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_says_why(guest: Any, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    ended = guest("run", "plugins=broken", "--allow-code")
    assert ended.code == 2
    assert words in ended.error


@pytest.mark.long
def test_an_installed_package_needs_neither_key_nor_permission(guest: Any, tmp_path: Path) -> None:
    """An entry point is what pip writes into a package's metadata: here by hand."""
    site = tmp_path / "site"
    shutil.copytree(GUESTS, site)
    info = site / "guest-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nguest = guest_parts\n")
    (tmp_path / "guest_parts.py").unlink()
    env = {"PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    assert "guest" in json.loads(guest("methods", "--json", env=env).out)["methods"]
    ended = guest("run", *SPEC, "rounds=1", *TOLD, "--out", "run", env=env)
    assert ended.code == 0, ended.err
    assert summary(tmp_path / "run")["method"] == "guest"
