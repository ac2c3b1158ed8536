"""The lock: which packages the icons come from, in which version, under which licence, with which bytes.

``lock.json`` also says how a set's styles are read from its names: from the ending of a name to the
domain, with an empty ending for all other names. ``tools/relock_icons.py`` renews it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

FREE = ("MIT", "Apache-2.0", "ISC", "CC0-1.0", "CC-BY-3.0", "CC-BY-4.0", "OFL-1.1")
"""The licences that a package of the lock may have."""


@dataclass(frozen=True)
class Package:
    """One npm package.

    Attributes:
        name: Its name in the registry.
        version: The exact version.
        integrity: ``sha512-`` and the base64 digest of its tarball.
        licence: The SPDX name of the drawings' licence.
        title: What its authors call it.
        author: Whom to credit.
        styles: From endings of icon names to domains; empty for the package of sketches.
    """

    name: str
    version: str
    integrity: str
    licence: str
    title: str
    author: str
    styles: Mapping[str, str]

    @property
    def prefix(self) -> str:
        """The set's short name, as in ``set:icon``."""
        return self.name.rpartition("/")[2]

    @property
    def tarball(self) -> str:
        """The name of its tarball, in the registry and in the cache."""
        return f"{self.prefix}-{self.version}.tgz"


@cache
def packages() -> tuple[Package, ...]:
    """Return the packages of ``lock.json`` in their fixed order."""
    return parse((resources.files(__package__) / "lock.json").read_text("utf-8"))


def parse(text: str) -> tuple[Package, ...]:
    """Read a lock."""
    return tuple(Package(**entry) for entry in json.loads(text)["packages"])
