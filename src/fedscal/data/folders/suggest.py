"""Suggest a recipe for a folder, with comments, to be edited by the user."""

from __future__ import annotations

import json

from fedscal.data.folders.tree import Tree


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
        'model = "convnet"  # or "hf:<folder>": a pretrained network adapts far better',
        "image_size = 64  # pixels a side that the network sees; a pretrained one mostly wants 224",
    ]


def _sites(tree: Tree) -> list[str]:
    return [
        "# Each folder is one client. A model is trained before, where the source images are:",
        "#     fedscal pretrain --data FOLDER image_size=64 --out MODEL",
        "#     fedscal run THIS_FILE",
        f"clients = {json.dumps(str(tree.root.absolute()))}",
        'source_model = "MODEL"  # where the trained model is',
    ]


_TRAINING = [
    'method = "fedscal"',
    "rounds = 20",
    "local_epochs = 5",
    "participation = 0.3  # share of the clients in a round",
    "batch_size = 64",
    "lr = 0.03",
    'on_bad = "error"  # "skip" leaves broken files out',
    "seed = 0",
]
