"""A commented recipe for a folder of images: what ``fedscal init`` writes."""

from __future__ import annotations

import json
import math

from fedscal.core.errors import shown
from fedscal.data.folders.tree import Tree
from fedscal.experiment.advice import Advice, advice
from fedscal.experiment.spec import RunSpec

_CLIENTS = 5
_TRAINING = [
    'method = "fedsite"  # for sites of your own; fedscal and the others are of the paper',
    "rounds = 12",
    "local_epochs = 5",
    "batch_size = 64",
    "lr = 0.03",
    'on_bad = "error"  # "skip" leaves broken files out',
    "seed = 0",
]
_FRAMING = '  # images are seen whole; "paper": their middle, and smaller crops'
_VIEWS = '  # source training sees changed images too, whatever the method; "weak" as in the paper'
_STEPS = "  # source training takes so many steps at least: few images are seen more often"
_MIRROR = '# mirror = "no"  # for what has a side: letters, digits, X-rays'
_CROPS = "# crops = 0.9  # for what may not be cut: random crops keep that share of an image; else 0.6"


def first_recipe(tree: Tree) -> str:
    """Return a commented TOML recipe for a folder of domains with classes, or of sites without."""
    sizes = {domain: len(files) for domain, files in tree.domains.items()}
    head = [f"# {tree.root}: " + ", ".join(f"{domain} {size} images" for domain, size in sizes.items())]
    labelled = [domain for domain, files in tree.domains.items() if files[0].label is not None]
    body = _domains(tree, labelled) if labelled and len(tree.domains) > 1 else _sites(tree)
    return "\n".join([*head, *body, *_TRAINING]) + "\n"


def _domains(tree: Tree, labelled: list[str]) -> list[str]:
    root = str(tree.root.absolute())
    largest = max(labelled, key=lambda domain: len(tree.domains[domain]))
    names = ", ".join(tree.classes[:8]) + (", ..." if len(tree.classes) > 8 else "")
    return [
        f"# {len(tree.classes)} classes: {shown(names)}",
        "#     fedscal run THIS_FILE",
        f"benchmark = {json.dumps(root)}",
        f"source = {json.dumps(largest)}  # the source model is trained on it; of {', '.join(labelled)}",
        f"clients_per_domain = {_CLIENTS}  # each other domain is cut into so many clients",
        *_participation(_CLIENTS * (len(tree.domains) - 1)),
        *_network(tree, RunSpec.make(benchmark=root, source=largest)),
    ]


def _network(tree: Tree, spec: RunSpec) -> list[str]:
    """Return the lines about the network and how it sees the images."""
    known = {one.key: one for one in advice(tree, spec)}
    why = "learns from your images alone; pip install 'fedscal[efficientnet]' brings a pretrained one"
    if spec.trunk == "frozen":
        why = "pretrained, and installed here; frozen: it stays as it is, and what comes after it is trained"
    return [
        '# The network. For another, change all: model = "hf:<folder>", trunk = "trained", image_size = 224',
        f"model = {json.dumps(spec.model)}  # {why}",
        f"trunk = {json.dumps(spec.trunk)}",
        _line(known["image_size"]) if "image_size" in known else f"image_size = {spec.image_size}",
        f"framing = {json.dumps(spec.framing)}{_FRAMING}",
        _line(known["mirror"]) if "mirror" in known else _MIRROR,
        _CROPS,
        f"pretrain_views = {json.dumps(spec.pretrain_views)}{_VIEWS}",
        f"pretrain_steps = {spec.pretrain_steps}{_STEPS}",
    ]


def _line(found: Advice) -> str:
    return f"{found.key} = {json.dumps(found.value)}  # {shown(found.why)}"


def _participation(clients: int) -> list[str]:
    """Return the lines about who takes part in a round."""
    spec = RunSpec(least_participants=10)
    taking = min(clients, max(spec.least_participants, math.ceil(spec.participation * clients)))
    share = "all" if taking == clients else f"{taking} of {clients}"
    return [
        f"participation = {spec.participation}  # share of the clients that take part in a round",
        f"least_participants = {spec.least_participants}  # but so many at least; here {share} do",
    ]


def _sites(tree: Tree) -> list[str]:
    return [
        "# Each folder is one site. A model is trained before, where labelled source images are:",
        "#     fedscal pretrain --data FOLDER --out MODEL",
        "#     fedscal run THIS_FILE",
        "# Folders that are the classes of one source, and no sites, are trained on instead:",
        f"#     fedscal pretrain --data {tree.root} --out MODEL",
        f"clients = {json.dumps(str(tree.root.absolute()))}",
        'source_model = "MODEL"  # the trained model; it brings network, image size, views and classes',
        *_participation(len(tree.domains)),
    ]
