"""Some of the classes of a folder: a subset that papers agree on, or a user's own list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedscal.core.errors import DataRefused, UsageError, nearest, shown
from fedscal.core.files import read_bytes
from fedscal.data.folders.lists import refuse_pickles
from fedscal.data.folders.tree import Tree

_LARGEST = 10_000_000
SUBSETS = {
    "domainnet-10": (
        *("bird", "feather", "headphones", "ice_cream", "teapot"),
        *("tiger", "whale", "windmill", "wine_glass", "zebra"),
    )
}
"""Named subsets; the ten classes of DomainNet are those of FedBN (Li et al., ICLR 2021)."""


def chosen_classes(choice: str) -> tuple[str, ...]:
    """Return the classes of a named subset, or of a text file with one class per line."""
    if choice in SUBSETS:
        return SUBSETS[choice]
    path = Path(choice)
    refuse_pickles(path)
    if not path.is_file():
        raise UsageError(
            f"classes={shown(choice)}: neither a file with a class a line nor a subset; known: "
            f"{', '.join(SUBSETS)}"
        )
    try:
        lines = read_bytes(path, _LARGEST).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise UsageError(f"classes={shown(choice)} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"classes={shown(choice)}: the file is not UTF-8 text.") from error
    classes = tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if not classes:
        raise UsageError(f"classes={shown(choice)}: the file names no class.")
    return classes


def with_classes(tree: Tree, choice: str) -> Tree:
    """Return the images of the chosen classes only; all if none are chosen."""
    if not choice:
        return tree
    chosen, classes = chosen_classes(choice), tree.classes
    for domain, files in tree.domains.items():
        if files[0].label is None:
            raise DataRefused(f"{domain} of {tree.root} has no classes for classes={choice} to choose from.")
    for name in chosen:
        if name not in classes:
            raise DataRefused(
                f"{tree.root} has no class '{shown(name)}' of classes={shown(choice)}{nearest(name, classes)}"
            )
    domains = {
        domain: tuple(file for file in files if file.label in chosen)
        for domain, files in tree.domains.items()
    }
    without = tuple(domain for domain, files in domains.items() if not files)
    return replace(tree, domains={d: f for d, f in domains.items() if f}, empty=(*tree.empty, *without))
