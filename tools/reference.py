"""The reference of the documentation's site, made from the code: nothing in it can be out of date.

``pages`` is called when the site is built (``tools/docs_site.py``); the pages are kept nowhere else.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Sequence
from importlib import import_module, resources
from itertools import groupby
from types import ModuleType
from typing import Any

import typer
from typer.testing import CliRunner

import fedscal
from fedscal.cli import app
from fedscal.core.errors import FedscalError
from fedscal.core.table import as_markdown
from fedscal.methods import ADAPTATIONS, METHODS

_WIDTH = 100
_ENDS = {
    0: "done",
    1: "a bug, whose traceback is written to a file; of `fedscal doctor`, a problem of this machine",
    130: "interrupted by Ctrl-C; a run can be resumed",
    143: "terminated by SIGTERM; a run can be resumed",
}
_METHOD_COLUMNS = {
    "title": "in tables",
    "idea": "idea",
    "adaptation": "its own adaptation",
    "reveals": "leaves a client beside its weights",
    "caveat": "caveat",
    "reference": "reference",
}


def pages() -> dict[str, str]:
    """Return every page of the reference by its place on the site."""
    made = {
        "commands": _commands(),
        "keys": _keys(),
        "methods": _methods(),
        "recipes": _recipes(),
        "exit-codes": _exit_codes(),
        "python": _python(),
        "extend": _listed("Python: parts of your own", import_module("fedscal.extend")),
        "losses": _listed("Python: losses", import_module("fedscal.losses")),
        "trackers": _listed("Python: trackers", import_module("fedscal.trackers")),
    }
    return {f"reference/{name}.md": text for name, text in made.items()}


def commands() -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield every command of the command line: its words, the command, and a context to ask it in."""
    root = typer.main.get_command(app)
    yield from _below(root, (), root.context_class(root, info_name="fedscal", terminal_width=_WIDTH))


def _below(command: Any, path: tuple[str, ...], context: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    yield path, command, context
    for name in command.list_commands(context) if hasattr(command, "commands") else ():
        inner = command.get_command(context, name)
        if not inner.hidden:
            yield from _below(
                inner, (*path, name), inner.context_class(inner, info_name=name, parent=context)
            )


def _commands() -> str:
    shown = [
        f"## {' '.join(('fedscal', *path))}\n\n```text\n{command.get_help(context)}\n```\n"
        for path, command, context in commands()
    ]
    return "# Commands\n\nAs every command prints it with `--help`.\n\n" + "\n".join(shown)


def _keys() -> str:
    found = json.loads(CliRunner().invoke(app, ["keys", "--json"]).stdout)
    parts = [
        "# Keys\n\nEvery setting of `fedscal run`, `compare` and `pretrain`, as `fedscal keys` lists them.\n"
    ]
    for group, keys in groupby(found, key=lambda key: key["group"]):
        rows = [
            [f"`{key['key']}`", *map(as_markdown, (key["default"], key["range"], key["help"]))]
            for key in keys
        ]
        parts.append(f"## {group}\n\n{_table(['key', 'default', 'range', 'meaning'], rows)}")
    return "\n".join(parts)


def _methods() -> str:
    methods = [
        [f"`{name}`", *(as_markdown(getattr(row, field)) for field in _METHOD_COLUMNS)]
        for name, row in METHODS.items()
    ]
    adaptations = [[f"`{name}`", as_markdown(_first_line(part))] for name, part in ADAPTATIONS.items()]
    return (
        "# Methods and adaptations in short\n\n"
        "[The page on methods](../methods.md) has equations, cost, and how faithful each is.\n\n"
        f"{_table(['method=', *_METHOD_COLUMNS.values()], methods)}\n"
        f"{_table(['adaptation=', 'loss'], adaptations)}"
    )


def _exit_codes() -> str:
    codes = _ENDS | {error.exit_code: _first_line(error) for error in FedscalError.__subclasses__()}
    rows = [[str(code), codes[code]] for code in sorted(codes)]
    return f"# Exit codes\n\n{_table(['code', 'meaning'], rows)}"


def _recipes() -> str:
    folder = resources.files("fedscal.experiment.recipes")
    texts = {
        entry.name: entry.read_text("utf-8") for entry in folder.iterdir() if entry.name.endswith(".toml")
    }
    shown = [f"## {name.removesuffix('.toml')}\n\n```toml\n{texts[name]}```\n" for name in sorted(texts)]
    return (
        "# Recipes\n\nThey come with the package and are named instead of a file: `fedscal run digits`, "
        "`fedscal compare systems`. Each begins with the command that it is for.\n\n" + "\n".join(shown)
    )


def _python() -> str:
    """Return the public names of the package: what one calls, then what that takes and returns."""
    public = {name: getattr(fedscal, name) for name in fedscal.__all__}
    functions = [name for name, value in public.items() if inspect.isfunction(value)]
    classes = [name for name, value in public.items() if inspect.isclass(value)]
    names = [f"fedscal.{name}" for name in (*functions, *classes)]
    return _module_page("Python", fedscal, names)


def _listed(title: str, module: ModuleType) -> str:
    """Return a page of a module: its docstring, then its functions and classes."""
    known = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    own = [name for name in known if getattr(getattr(module, name), "__module__", "").startswith("fedscal")]
    names = [f"{module.__name__}.{name}" for name in own if name not in fedscal.__all__]
    return _module_page(title, module, names)


def _module_page(title: str, module: ModuleType, names: Sequence[str]) -> str:
    """Return a module's own words, and a place for those of each name, which mkdocstrings fills."""
    words = re.sub(r" *# doctest: \+SKIP", "", inspect.getdoc(module) or "")
    places = "\n".join(f"::: {name}\n" for name in names)
    return f"# {title}\n\n```text\n{words}\n```\n\n{places}"


def _first_line(part: type) -> str:
    return (inspect.getdoc(part) or "").splitlines()[0]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
