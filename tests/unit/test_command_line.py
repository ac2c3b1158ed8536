"""The command line before a command does anything: version, help, completion, words that cannot be read."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fedscal import cli
from fedscal.cli import _COMMANDS
from fedscal.cli.guide import EPILOGS
from fedscal.compare.grid import SINGULAR
from fedscal.core.version import __version__
from fedscal.experiment.spec import all_options

FORKS = """
import json, os, sys
import typer.main
from fedscal.cli import main

def run(words, env, *files):
    for number, name in enumerate(files, 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["fedscal", *words]
    code = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        print("imported:", *sorted({"torch", "numpy", "PIL", "flwr"} & set(sys.modules)))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

for line in sys.stdin:
    pid = os.fork() or run(*json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@cache
def forks() -> subprocess.Popen[str]:
    """Return a process that has imported the command line and forks it; it ends with the tests."""
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", FORKS], stdin=pipe, stdout=pipe, text=True)


def fedscal(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, which says what it imported that is large."""
    process = forks()
    assert process.stdin
    assert process.stdout
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("out", "err")]
        request = [words, {**os.environ, "COLUMNS": "80", **env}, *map(str, files)]
        print(json.dumps(request), file=process.stdin, flush=True)
        code = int(process.stdout.readline())
        return subprocess.CompletedProcess(words, code, *(file.read_text() for file in files))


def group() -> Any:
    """Return the group of all commands."""
    return typer.main.get_command(cli.app)


def context() -> Any:
    """Return what commands are looked up in."""
    return group().make_context("fedscal", ["keys"])


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
    assert completed("data", "") == ["list", "get", "check", "show", "clean"]
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


def listed(*words: str) -> set[str]:
    """Return the keys that are listed, after a look at how they are."""
    done = fedscal("keys", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("imported:\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    return {line.split("=")[0].strip() for line in done.stdout.splitlines() if re.match(r"  [a-z]", line)}


def test_all_keys_are_listed_once_in_groups() -> None:
    assert listed() == set(all_options())
    lines = fedscal("keys").stdout.splitlines()
    groups = [line for line in lines if re.match("[a-z]", line)][:-1]  # the last says what was imported
    assert groups[:4] == ["data", "network", "source training", "federation"]
    assert "method fedprox, fedmoon" in groups
    assert groups[-1] == "execution"
    assert len(set(groups)) == len(groups)


def test_keys_are_found_by_a_word_of_their_name_or_meaning() -> None:
    assert {"pretrain_epochs", "local_epochs"} <= listed("epoch")
    assert "tau_init" not in listed("epoch")
    assert "mirror" in listed("training VIEWS")
    done = fedscal("keys", "nosuchword")
    assert done.returncode == 2
    assert "nosuchword" in done.stderr


def test_a_method_lists_what_it_and_its_adaptation_declare() -> None:
    declared = listed("--method", "fedprox")
    assert {"mu", "beta", "norm_limit"} <= declared
    assert not {"rounds", "tau_init"} & declared
    assert "mu=0.01 " in fedscal("keys", "--method", "fedprox").stdout
    assert fedscal("keys", "--method", "fedprx").returncode == 2


@pytest.mark.parametrize("group", ["", "data", "flower"])
def test_summaries_are_whole_and_fit(group: str) -> None:
    lines = fedscal(*group.split(), "--help").stdout.partition("Commands:\n")[2].splitlines()[:-1]
    assert len(lines) > 4
    assert not [line for line in lines if line.endswith(("...", "…")) or len(line) > 79]
    assert all(re.match(r"  \w+ +\w.*", line) for line in lines), "one line each"


@pytest.mark.parametrize("command", EPILOGS)
def test_help_has_examples_of_commands_that_are_there(command: str) -> None:
    told = fedscal(command, "--help").stdout
    assert max(map(len, told.splitlines())) <= 80
    shown = [shlex.split(text) for text in re.findall(r"^ +fedscal (.*?)(?:   .*)?$", told, re.MULTILINE)]
    assert len([words for words in shown if words[0] == command]) >= 2
    for name, *words in shown:
        parsed = group().get_command(context(), name)
        parsed.make_context(name, list(words))  # refuses an option that is not there
        keys = {word.partition("=")[0] for word in words if re.match("[a-z_]+=", word)}
        assert keys <= {*all_options(), *SINGULAR}


def test_arguments_are_explained() -> None:
    told = " ".join(fedscal("predict", "--help").stdout.split())
    assert "MODEL A run directory, or a model's .safetensors. [required]" in told
    assert told.count("A run directory, or") == 1


def test_the_help_of_a_run_names_ten_keys_with_values_that_are_read() -> None:
    told = fedscal("run", "--help").stdout
    named = dict(re.findall(r"^ +([a-z_]+)=(\S+) ", told, re.MULTILINE))
    assert len(named) == 10
    for name, value in named.items():
        all_options()[name].parse(value)
    assert "fedscal keys" in told
