"""Code of users (plugins, own backbones): imported only where a person allowed it.

The name of a module can come from a recipe, a run directory, a model's card or a server that somebody else
wrote. None of them can permit what it asks for: permission is given to a process, and to those it starts.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType

from fedscal.core.errors import UsageError, first_line, shown

PERMISSION = "FEDSCAL_ALLOW_CODE"
ENTRY_POINTS = "fedscal.plugins"
"""Installed packages name their modules under this; whoever installed them has allowed them."""


def allow_code() -> None:
    """Let this process, and those that it starts, import the modules that ``plugins`` and ``model`` name."""
    os.environ[PERMISSION] = "1"


def check_allowed(key: str) -> None:
    """Refuse a key that asks for code, such as ``plugins=mine``, unless code is allowed."""
    if os.environ.get(PERMISSION) != "1":
        raise UsageError(
            f"{shown(key)} would run code of that module: if you trust it, add --allow-code "
            "(in Python: fedscal.allow_code())."
        )


def import_user_module(module: str, key: str) -> ModuleType:
    """Import a module for a key of a run."""
    check_allowed(key)
    if os.getcwd() not in sys.path:  # a file in the working directory is what most people have
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(module)
    except Exception as error:
        raise UsageError(
            f"{shown(key)}: {shown(module)} cannot be imported ({first_line(error)})."
        ) from error


def load_plugins(names: str = "") -> None:
    """Import the modules of installed packages, then those of a run's key ``plugins``."""
    _load_installed()
    for name in filter(None, (part.strip() for part in names.split("+"))):
        import_user_module(name, f"plugins={names}")


@cache  # to read the metadata of all packages takes a while, and a grid makes thousands of specs
def _load_installed() -> None:
    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()
