"""What the icons are made of: the packages of ``lock.json``, and the rules of ``classes*.toml``.

The lock says which packages, in which version, under which licence, with which bytes, and how a set's styles
are read from its names: from the ending of a name to the domain, with an empty ending for all other names.
``tools/relock_icons.py`` renews it. The rules give an icon's class by its name alone and strictly: a doubtful
name matches nothing.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

_LARGEST_VARIANT = 15
"""Greater numbers in names are sizes in pixels: the same drawing again, or another one for small sizes."""
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
    lock = json.loads((resources.files(__package__) / "lock.json").read_text("utf-8"))
    return tuple(Package(**entry) for entry in lock["packages"])


@dataclass(frozen=True)
class Rules:
    """The classes and what counts as one of them.

    Attributes:
        classes: The class names, in the order of their labels.
        sketches: The Quick Draw category of each class.
        names: The label of every icon name that is taken.
        neutral: Words that do not change what is drawn.
        excluded: Single icons, ``set:icon``, or ``set:word*`` for all that begin so, per label.
    """

    classes: tuple[str, ...]
    sketches: tuple[str, ...]
    names: Mapping[str, int]
    neutral: frozenset[str]
    excluded: Mapping[int, frozenset[str]]

    def match(self, prefix: str, icon: str, styles: Mapping[str, str]) -> tuple[int, str] | None:
        """Return label and domain of a set's icon, or None if it is to be left out."""
        plain = self.plain(icon, styles)
        label = self.names.get(plain[0]) if plain else None
        if plain is None or label is None or self._is_excluded(label, f"{prefix}:{icon}"):
            return None
        return label, plain[1]

    def plain(self, icon: str, styles: Mapping[str, str]) -> tuple[str, str] | None:
        """Return an icon's name without words that say nothing, and its domain; None if it has no style."""
        style = _style(icon, styles)
        if style is None:
            return None
        base, domain = style
        first, *others = base.split("-")
        return "-".join([first, *(word for word in others if not self._says_nothing(word))]), domain

    def _says_nothing(self, word: str) -> bool:
        return word in self.neutral or (word.isdecimal() and int(word) <= _LARGEST_VARIANT)

    def _is_excluded(self, label: int, icon: str) -> bool:
        return any(
            icon.startswith(entry[:-1]) if entry.endswith("*") else icon == entry
            for entry in self.excluded[label]
        )


@cache
def rules(file: str = "classes.toml") -> Rules:
    """Return the rules of a file of this package."""
    return parse((resources.files(__package__) / file).read_text("utf-8"))


def parse(text: str) -> Rules:
    """Read rules; a name under two classes is an error of the file."""
    table = tomllib.loads(text)
    entries = list(table["class"].values())
    names: dict[str, int] = {}
    for label, entry in enumerate(entries):
        for name in entry["names"]:
            if name in names:
                raise ValueError(f"rules of icons: '{name}' stands under two classes")
            names[name] = label
    return Rules(
        classes=tuple(table["class"]),
        sketches=tuple(entry["sketch"] for entry in entries),
        names=names,
        neutral=frozenset(table["neutral"]),
        excluded={label: frozenset(entry["exclude"]) for label, entry in enumerate(entries)},
    )


def _style(icon: str, styles: Mapping[str, str]) -> tuple[str, str] | None:
    """Split off the longest ending that the set knows, and return the rest and the domain."""
    for ending in sorted(styles, key=len, reverse=True):
        if not ending:
            return icon, styles[ending]
        if icon.endswith(f"-{ending}"):
            return icon.removesuffix(f"-{ending}"), styles[ending]
    return None
