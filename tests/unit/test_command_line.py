"""The command line before a command does anything: version, help, completion, words that cannot be read."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fedscal.cli import _COMMANDS
from fedscal.core.version import __version__

HEAVY = """
import atexit, os, sys
atexit.register(lambda: print("imported:", *sorted({"torch", "numpy", "PIL", "flwr"} & set(sys.modules))))
sys.argv[0] = "fedscal"
from fedscal.cli import main
main()
"""


def fedscal(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, which says what it imported that is large."""
    return subprocess.run(
        [sys.executable, "-c", HEAVY, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80", **env},
    )


def completed(*words: str, instruction: str = "bash_complete") -> list[str]:
    """Return what a shell is offered for the last of the words."""
    line = " ".join(("fedscal", *words))
    env = {"_FEDSCAL_COMPLETE": instruction, "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    *offered, imported = fedscal(**env).stdout.splitlines()
    assert imported == "imported:"
    return offered


def test_the_version_is_the_packages() -> None:
    done = fedscal("--version")
    assert done.returncode == 0
    assert done.stdout == f"fedscal {__version__}\nimported:\n"


@pytest.mark.parametrize("words", [(), ("run",), ("data", "check"), ("flower", "site")], ids=" ".join)
def test_every_command_has_short_help(words: tuple[str, ...]) -> None:
    done = fedscal(*words, "-h")
    assert done.returncode == 0
    assert " ".join(("Usage: fedscal", *words)) in done.stdout
    assert done.stdout.endswith("imported:\n")


def test_a_shell_completes_commands_and_their_options() -> None:
    assert completed("") == list(_COMMANDS)
    assert completed("re") == ["reproduce", "report"]
    assert completed("data", "") == ["list", "get", "check", "show"]
    assert completed("run", "--re") == ["--resume", "--report"]
    assert completed("re", instruction="complete_bash") == ["reproduce", "report"]


def test_a_shell_completes_keys() -> None:
    assert completed("run", "pretrain_e") == ["pretrain_epochs="]
    assert completed("compare", "seeds=0,1", "tau_i") == ["tau_init="]


def test_the_script_of_a_shell_is_shown() -> None:
    assert "complete_bash" in fedscal(_FEDSCAL_COMPLETE="bash_source").stdout
    assert "--install-completion" in fedscal("--help").stdout


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (("run", "--rounds", "3"), "rounds=3"),
        (("run", "--rounds=3"), "rounds=3"),
        (("run", "--round", "3"), "rounds=3"),
        (("run", "seed=1", "--clients-per-domain", "3", "--quiet"), "clients_per_domain=3"),
        (("run", "--benchmark", "my photos"), "'benchmark=my photos'"),
        (("run", "--mu", "--quiet"), "mu=..."),
        (("compare", "--seeds", "0,1"), "seeds=0,1"),
        (("flower", "run", "--batch-size=8"), "batch_size=8"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_key_that_is_given_as_an_option_is_shown_as_it_is_typed(words: tuple[str, ...], typed: str) -> None:
    done = fedscal(*words)
    assert done.returncode == 2
    assert done.stderr.endswith(f"settings are typed as key=value: {typed}\n")
    assert done.stderr.count("\n") == 1
    assert done.stdout == "imported:\n"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("run", "--nope"), "--nope"),
        (("data", "list", "--rounds", "3"), "--rounds"),  # takes no keys
        (("flower", "run", "--model"), "--model"),  # an option, though a key is called so too
    ],
)
def test_other_unreadable_options_are_named_by_what_they_are(words: tuple[str, ...], named: str) -> None:
    done = fedscal(*words)
    assert done.returncode == 2
    assert named in done.stderr
    assert "key=value:" not in done.stderr
