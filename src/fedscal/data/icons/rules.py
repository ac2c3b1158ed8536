"""The class of an icon, by its name alone and strictly: a doubtful name matches nothing.

The rules are in ``classes.toml``, which explains them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

_LARGEST_VARIANT = 15
"""Greater numbers in names are sizes in pixels: the same drawing again, or another one for small sizes."""


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
        """Return label and domain of an icon, or None if it is to be left out.

        Args:
            prefix: The name of the icon's set.
            icon: The icon's name.
            styles: From the endings of the set's names to domains; an empty ending stands for the rest.
        """
        style = _style(icon, styles)
        if style is None:
            return None
        base, domain = style
        first, *others = base.split("-")
        words = [first, *(word for word in others if not self._says_nothing(word))]
        label = self.names.get("-".join(words))
        if label is None or self._is_excluded(label, f"{prefix}:{icon}"):
            return None
        return label, domain

    def _says_nothing(self, word: str) -> bool:
        return word in self.neutral or (word.isdecimal() and int(word) <= _LARGEST_VARIANT)

    def _is_excluded(self, label: int, icon: str) -> bool:
        return any(
            icon.startswith(entry[:-1]) if entry.endswith("*") else icon == entry
            for entry in self.excluded[label]
        )


@cache
def rules() -> Rules:
    """Return the rules of ``classes.toml``."""
    return parse((resources.files(__package__) / "classes.toml").read_text("utf-8"))


def parse(text: str) -> Rules:
    """Read rules; a name under two classes is an error of the file."""
    table = tomllib.loads(text)
    entries = list(table["class"].values())
    names: dict[str, int] = {}
    for label, entry in enumerate(entries):
        for name in entry["names"]:
            if name in names:
                raise ValueError(f"classes.toml: '{name}' stands under two classes")
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
