"""What the core and each extra bring, from pyproject.toml and the metadata of what is installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).parents[1]
CORE = "core"


@cache
def declared() -> dict[str, tuple[Requirement, ...]]:
    """Return the requirements of the core and of every extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = {CORE: project["dependencies"], **project["optional-dependencies"]}
    return {part: tuple(map(Requirement, lines)) for part, lines in parts.items()}


def pins() -> dict[NormalizedName, Requirement]:
    """Return the exact versions of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in found}


def brought_by(*parts: str) -> set[NormalizedName]:
    """Return all distributions that the core or extras bring, directly or not.

    What a distribution needs in turn is known only if it is installed.
    """
    found: set[tuple[NormalizedName, str]] = set()
    waiting = [need for part in parts for need in _wanted(declared()[part], "")]
    while waiting:
        need = waiting.pop()
        if need not in found:
            found.add(need)
            waiting += _wanted(_requirements(need[0]), need[1])
    return {name for name, _ in found}


def _wanted(requirements: Iterable[Requirement], extra: str) -> list[tuple[NormalizedName, str]]:
    """Return names, each with no extra and with every extra that is asked of it."""
    apply = [need for need in requirements if need.marker is None or need.marker.evaluate({"extra": extra})]
    return [(canonicalize_name(need.name), inner) for need in apply for inner in ("", *need.extras)]


@cache
def _requirements(name: NormalizedName) -> tuple[Requirement, ...]:
    try:
        return tuple(map(Requirement, metadata.requires(name) or []))
    except metadata.PackageNotFoundError:
        return ()
