"""What was probably meant by a command line that cannot be read."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedscal.compare.grid import SINGULAR
from fedscal.core.errors import shown
from fedscal.experiment.spec import all_options

if TYPE_CHECKING:
    import click

_ALIKE = 0.8
"""How alike a word must be to a key to be taken for it, from 0 to 1."""


def as_key(error: click.ClickException, argv: Sequence[str]) -> str:
    """Say how a key that was given as an option is typed; nothing if no key was meant.

    It is not understood as if it were an option: recipes, environment and ``fedscal keys`` have one spelling,
    and `--model` is both an option of a command and a key, with different meanings.
    """
    option = _unknown_option(error)
    key = _meant(option.lstrip("-").replace("-", "_")) if option else ""
    if not key:
        return ""
    typed = shlex.quote(f"{key}={shown(_value(option, argv))}")
    return f"error: {shown(option)} is no option; settings are typed as key=value: {typed}"


def _unknown_option(error: click.ClickException) -> str:
    """Return the option that a command does not have, if it takes keys."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    takes_keys = any(param.name == "words" for param in getattr(command, "params", ()))
    # By name: click and typer each have a class of it.
    unknown = takes_keys and type(error).__name__ == "NoSuchOption"
    return str(getattr(error, "option_name", "")) if unknown else ""


def _meant(word: str) -> str:
    """Return the key that a word is, or nearly is."""
    known = [*all_options(), *SINGULAR]
    return next(iter(difflib.get_close_matches(word[:100], known, n=1, cutoff=_ALIKE)), "")


def _value(option: str, argv: Sequence[str]) -> str:
    """Return what was given for an option, ``...`` if nothing was."""
    for word, following in zip(argv, [*argv[1:], "..."], strict=True):
        if word == option:
            return "..." if following.startswith("--") else following
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return "..."
