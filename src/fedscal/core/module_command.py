"""How this program starts another Python process of its own."""

from __future__ import annotations

import sys


def module_command(module: str, *words: object) -> list[str]:
    """Return the command that runs a module with this Python.

    Without ``-P`` a file in the working directory, such as ``queue.py``, would take the place of the
    module of that name in Python's library or in a package that is used here.
    """
    return [sys.executable, "-P", "-m", module, *map(str, words)]
