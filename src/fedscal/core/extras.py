"""Packages that only some commands need: an extra installs them, and is named when they are missing.

The extras themselves are declared in pyproject.toml and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from fedscal.core.errors import UsageError, first_line

_OURS = "fedscal"
_DEVELOPERS = {"dev", "docs"}
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[(?P<inner>[\w,-]+)\])?[^;]*;.*\bextra == ['\"](?P<extra>[\w-]+)['\"]"
)


class ExtraMissing(UsageError):
    """A package that an extra installs cannot be used."""

    def __init__(self, extra: str, what: str) -> None:
        super().__init__(f"{what}: {advice(extra)}")


def advice(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'fedscal[{extra}]'"


@contextmanager
def from_extra(extra: str, purpose: str) -> Iterator[None]:
    """Import inside of this what an extra installs: if it is missing, the error names the extra.

    >>> with from_extra("onnx", "ONNX"):
    ...     import onnxruntime
    """
    try:
        yield
    except ImportError as error:
        name = error.name or "a package"
        if name.partition(".")[0] == _OURS:
            raise  # a bug of ours: no extra would mend it
        found = isinstance(error, ModuleNotFoundError)
        what = f"needs {name}" if found else f"cannot import {name} ({first_line(error)})"
        raise ExtraMissing(extra, f"{purpose} {what}") from error


def known() -> list[str]:
    """Return the extras that a user may install."""
    declared = metadata.metadata(_OURS).get_all("Provides-Extra") or []
    return sorted(set(declared) - _DEVELOPERS)


def missing(extra: str, of: str = _OURS) -> list[str]:
    """Return the packages of an extra that are not installed."""
    return sorted(name for name in _packages(extra, of) if not _installed(name))


def _packages(extra: str, of: str) -> set[str]:
    """Return what an extra names, and what the extras that it asks of others name: ``flwr[simulation]``."""
    found = set()
    for requirement in filter(None, map(_REQUIREMENT.match, metadata.requires(of) or [])):
        if requirement["extra"] == extra:
            found.add(requirement["name"])
            inner = requirement["inner"].split(",") if requirement["inner"] else []
            if inner and _installed(requirement["name"]):
                found |= {name for part in inner for name in _packages(part, requirement["name"])}
    return found


def _installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False
