"""Which Flower apps may run here: the one in the installed package, and those that an operator lists.

A Flower app is an archive that a server sends to its sites. Ours holds no code, so its hash says all
about it: whatever has another hash is refused before it is unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from pathlib import Path

from fedscal.core import files
from fedscal.core.errors import UsageError
from fedscal.core.extras import from_extra

_SHA256 = re.compile(r"[0-9a-f]{64}")


@cache
def installed_app() -> bytes:
    """Return the app of the installed package as Flower packs it."""
    with from_extra("flower", "fedscal flower"):
        from flwr.cli.build import build_fab_from_disk
    with resources.as_file(resources.files("fedscal.flower") / "app") as folder:
        return build_fab_from_disk(Path(folder))


def installed_hash() -> str:
    """Return the sha256 of the app of the installed package."""
    return files.sha256(installed_app())


def allowed_hashes(others: Iterable[str] = ()) -> frozenset[str]:
    """Return the hashes of all apps that may run here."""
    listed = [text.strip().lower() for text in others]
    for text in listed:
        if not _SHA256.fullmatch(text):
            raise UsageError(f"'{text[:80]}' is not the sha256 of an app: 64 hexadecimal digits.")
    return frozenset([installed_hash(), *listed])
