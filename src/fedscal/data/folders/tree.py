"""The contents of a user's folder: image files by domain, with their classes; and a recipe for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Suffixes, in lower case, of image files; other files are counted and skipped."""

_TRAINING = [
    'method = "fedsite"  # for sites of your own; fedscal and the others are of the paper',
    "rounds = 12",
    "local_epochs = 5",
    "participation = 0.3  # share of the clients in a round, but ten at least",
    "batch_size = 64",
    "lr = 0.03",
    'on_bad = "error"  # "skip" leaves broken files out',
    "seed = 0",
]


@dataclass(frozen=True)
class File:
    """An image file, and the class that its folder or its list names, if any."""

    path: Path
    label: str | None


@dataclass(frozen=True)
class Tree:
    """The contents of a folder.

    Attributes:
        root: the folder that holds the domains.
        domains: the files of each of its domains, sorted.
        others: how many files were skipped because their suffix is no image's.
        hidden: how many hidden files and folders were skipped.
        empty: the folders that hold no image.
    """

    root: Path
    domains: Mapping[str, tuple[File, ...]]
    others: int = 0
    hidden: int = 0
    empty: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, sorted; empty if there are none."""
        return tuple(
            sorted({f.label for files in self.domains.values() for f in files if f.label is not None})
        )


def as_one_domain(tree: Tree, name: str) -> Tree:
    """Read an unlabelled folder whose own name is the source's as one domain; its folders are the classes."""
    if tree.classes or name != tree.root.name or name in tree.domains:
        return tree
    files = tuple(File(file.path, label) for label, images in tree.domains.items() for file in images)
    return replace(tree, domains={name: files})


def looks_like_an_image(name: str) -> bool:
    """Whether a name has an image's suffix."""
    return Path(name).suffix.lower() in IMAGES


def recipe(tree: Tree) -> str:
    """Return a commented TOML recipe for a folder of domains with classes, or of sites without."""
    sizes = {domain: len(files) for domain, files in tree.domains.items()}
    head = [f"# {tree.root}: " + ", ".join(f"{domain} {size} images" for domain, size in sizes.items())]
    labelled = [domain for domain, files in tree.domains.items() if files[0].label is not None]
    body = _domains(tree, labelled) if labelled and len(tree.domains) > 1 else _sites(tree)
    return "\n".join([*head, *body, *_TRAINING]) + "\n"


def _domains(tree: Tree, labelled: list[str]) -> list[str]:
    largest = max(labelled, key=lambda domain: len(tree.domains[domain]))
    shown = ", ".join(tree.classes[:8]) + (", ..." if len(tree.classes) > 8 else "")
    return [
        f"# {len(tree.classes)} classes: {shown}",
        "#     fedscal run THIS_FILE",
        f"benchmark = {json.dumps(str(tree.root.absolute()))}",
        f"source = {json.dumps(largest)}  # the source model is trained on it; of {', '.join(labelled)}",
        "clients_per_domain = 5  # each other domain is cut into so many clients",
        "# model: efficientnet-lite0, frozen, at 160 pixels if it is installed (the extra efficientnet),",
        "# else a small convnet at 64 pixels; to choose yourself:",
        '# model = "hf:<folder>"',
        "# image_size = 224  # pixels a side that the network sees",
    ]


def _sites(tree: Tree) -> list[str]:
    return [
        "# Each folder is one client. A model is trained before, where the source images are:",
        "#     fedscal pretrain --data FOLDER --out MODEL",
        "#     fedscal run THIS_FILE",
        f"clients = {json.dumps(str(tree.root.absolute()))}",
        'source_model = "MODEL"  # where the trained model is',
    ]
