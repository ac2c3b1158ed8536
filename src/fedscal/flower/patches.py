"""Parts of Flower that are put in the place of its own, where it has no setting for what we need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

_FIRST_RETRY = 0.05


def replace(module: str, name: str, make: Callable[[Any], Any]) -> None:
    """Put something else in place of a part of Flower; a Flower without that part ends here, unstarted."""
    owner = import_module(module)
    setattr(owner, name, make(getattr(owner, name)))


def pull_soon(module: str, name: str = "pull_objects") -> None:
    """Let a module of Flower ask again sooner for a part of a message that is not there yet.

    Who is told of a message asks for its parts at once, while they are on their way: nearly always one is
    not there, and Flower would wait a second on every leg. The pauses still double, to Flower's longest.
    """
    replace(module, name, lambda flowers: partial(flowers, initial_backoff=_FIRST_RETRY))
