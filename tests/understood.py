"""Whether a command line would be understood: words are held against the real parser, nothing is run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import typer

from fedscal.cli import app
from fedscal.cli.jobs import gather, layers
from fedscal.compare import grid
from fedscal.data.registry import BENCHMARKS
from fedscal.experiment.spec import RunSpec, all_options, parse_assignments
from fedscal.methods import ADAPTATIONS, METHODS
from fedscal.models.registry import MODELS
from fedscal.paper.tables import TABLES

LEFT_OUT = "..."
_ROOT: Any = typer.main.get_command(app)
_FILES = {"clients", "source_model", "plugins"}
"""Keys that name files which are not here."""


def find(words: Sequence[str]) -> tuple[str, Any, list[str]]:
    """Return the name of the command that words begin with, the command, and what follows."""
    command, path, rest = _ROOT, [], list(words)
    while hasattr(command, "get_command") and rest and not rest[0].startswith("-"):
        path.append(rest.pop(0))
        command = command.get_command(command.context_class(command, resilient_parsing=True), path[-1])
        assert command, f"there is no command {' '.join(path)}"
    return " ".join(path), command, rest


def understand(words: Sequence[str], whole: bool = True) -> None:
    """Refuse what no command, option, key or recipe is; a part of a command may lack what it needs."""
    path, command, rest = find(words)
    given = {word.partition("=")[0] for word in rest if word.startswith("-")}
    assert given <= _options(command), given - _options(command)
    if not whole or LEFT_OUT in rest:
        check_keys(parse_assignments([word for word in rest if "=" in word and not word.startswith("-")]))
        return
    parent = _ROOT.context_class(_ROOT, info_name="fedscal")
    params = command.make_context(path, rest, parent=parent).params
    table = params.get("name") or ""
    _check_words(path, [*([table] if "=" in table else []), *(params.get("words") or [])])
    rehearsed = params.get("rehearse") and (not table or "=" in table)  # all of them
    assert path != "reproduce" or rehearsed or table in TABLES, f"there is no table {table}"


def check_keys(keys: Mapping[str, str]) -> None:
    """Hold every key against its declaration; those of a plugin are its own."""
    known = all_options()
    tables: dict[str, Collection[str]] = {"method": METHODS, "adaptation": ADAPTATIONS}
    for name, text in keys.items() if "plugins" not in keys else ():
        single = grid.SINGULAR.get(name, name)
        assert single in known, f"there is no key {name}"
        for value in text.split(",") if text != LEFT_OUT else ():
            known[single].parse(value)
            assert value in tables.get(single, [value]), f"{single}={value}"


def _options(command: Any) -> set[str]:
    return {text for param in command.params for text in (*param.opts, *param.secondary_opts)} | {
        "-h",
        "--help",
    }


def _check_words(path: str, words: list[str]) -> None:
    """Check the keys of a command one by one, and their recipe or grid as a whole where no file is needed."""
    keys = parse_assignments([word for word in words if "=" in word])
    check_keys(keys)
    own_recipe = any("=" not in word and word.endswith(".toml") for word in words)
    if path in {"run", "compare", "pretrain"} and not own_recipe and not _needs_files(keys):
        assert grid.union(*layers(words)) if path == "compare" else RunSpec.make(**gather(words))


def _needs_files(keys: Mapping[str, str]) -> bool:
    benchmark, model = keys.get("benchmark", RunSpec.benchmark), keys.get("model", RunSpec.model)
    return bool(_FILES & keys.keys()) or benchmark not in BENCHMARKS or model not in MODELS
