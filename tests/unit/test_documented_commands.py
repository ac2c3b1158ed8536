"""Every command that README and the documentation print is understood, and run by a test or marked.

A renamed command, option, key, recipe, target or module fails here. A command of a code block whose kind no
test runs, because it needs data, machines or hours, says so in a comment before its block:

    <!-- not run: needs Office-Home and a GPU -->
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.requirements import ROOT

from documented import PAGES, Command, commands, of_makefile
from fedscal.experiment.spec import environment_keys
from understood import check_keys, find, understand

RUN_BY = {
    "run": "integration/test_run_end_to_end.py",
    "report": "integration/test_run_end_to_end.py",
    "methods": "integration/test_run_end_to_end.py",
    "keys": "integration/test_run_end_to_end.py",
    "doctor": "integration/test_run_end_to_end.py",
    "pretrain": "integration/test_folders_end_to_end.py",
    "init": "integration/test_folders_end_to_end.py",
    "audit": "integration/test_folders_end_to_end.py",
    "predict": "integration/test_folders_end_to_end.py",
    "export": "integration/test_folders_end_to_end.py",
    "data check": "integration/test_folders_end_to_end.py",
    "data get": "unit/test_icons_download.py",
    "data show": "unit/test_contact_sheet.py",
    "watch": "integration/test_watch.py",
    "flower certs": "integration/test_flower_arguments.py",
}
"""Commands that a test runs, on small data or for a round or two, and where."""
BY_CHECK = {"check", "demo", "docs", "test"}
"""Targets that CI runs; of ``make demo`` what it runs: integration/test_wheel.py."""
EVERY = [command for page in PAGES for command in commands(page)]
OURS = [command for command in (*EVERY, *of_makefile()) if command.words[0] == "fedscal"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.fixture(autouse=True)
def _only_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let --allow-code be understood and not obeyed, and no file be found by chance."""
    monkeypatch.setattr("fedscal.cli.allow_code", lambda: None)
    monkeypatch.chdir(tmp_path)


def of(program: str) -> list[Command]:
    """Return the commands of the pages that call a program and do not only name it."""
    return [command for command in EVERY if command.words[0] == program and command.words[1:]]


def test_there_is_something_to_check() -> None:
    pages = {command.where.partition(":")[0] for command in EVERY}
    assert {"README.md", "CONTRIBUTING.md", "docs/deploy.md", "docs/tutorials/own-images.md"} <= pages
    assert min(len(OURS), len(of("make")), len(of("python"))) > 5


@pytest.mark.parametrize("command", OURS, ids=str)
def test_a_command_is_understood(command: Command) -> None:
    check_keys(environment_keys(dict(command.environment)))
    understand(command.words[1:], whole=not command.inline)


@pytest.mark.parametrize("command", of("make"), ids=str)
def test_a_target_is_there(command: Command) -> None:
    assert set(command.words[1:]) <= TARGETS


@pytest.mark.parametrize("command", of("python"), ids=str)
def test_a_module_or_script_is_there(command: Command) -> None:
    first, *rest = command.words[1:]
    assert (ROOT / (f"{rest[0].replace('.', '/')}.py" if first == "-m" else first)).is_file()


def is_run(command: Command) -> bool:
    """Whether a test runs commands of this kind."""
    if command.words[0] == "fedscal":
        return find(command.words[1:])[0] in RUN_BY
    return set(command.words[1:]) <= BY_CHECK or command.words[0] == "python"


def test_a_command_of_a_block_is_run_by_a_test_or_says_why_not() -> None:
    silent = [command for command in EVERY if not command.inline and not command.why_not]
    assert not [str(command) for command in silent if not is_run(command)]


@pytest.mark.parametrize(("command", "file"), RUN_BY.items())
def test_the_tests_that_are_named_run_the_command(command: str, file: str) -> None:
    assert f'"{command.split()[-1]}"' in (ROOT / "tests" / file).read_text()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("rum", "there is no command rum"),
        ("run ronds=3", "there is no key ronds"),
        ("run rounds=none", "needs a whole number"),
        ("run method=fedscale", "method=fedscale"),
        ("run digitz", "is neither key=value nor a recipe"),
        ("run source=nowhere", "no such domain"),
        ("run rounds=1 --ut runs/a", "--ut"),
        ("compare methods=fedloa,fedscale", "method=fedscale"),
        ("report", "Missing parameter: directories"),
        ("flower site --sever a:1", "--sever"),
        ("reproduce office-house --data a", "there is no table office-house"),
    ],
)
def test_what_is_wrong_is_found(wrong: str, said: str) -> None:
    """Without this the tests above could pass because they look at nothing."""
    with pytest.raises(Exception, match=said):  # the parser's errors and assertions alike
        understand(wrong.split())
