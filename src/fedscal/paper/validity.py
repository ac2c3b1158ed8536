"""Whether a table is a reproduction: the real data, the paper's protocol, enough seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedscal.core.documents import read_json
from fedscal.core.options import as_typed
from fedscal.experiment.experiment import load_data
from fedscal.experiment.spec import EXECUTION_KEYS, RunSpec
from fedscal.models.registry import HUGGING_FACE
from fedscal.paper.datasets import Copy
from fedscal.paper.tables import SEEDS, Entry, protocol

HEADING = "NOT A REPRODUCTION"
_FREE = EXECUTION_KEYS | {"model", "threads", "device", "precision", "micro_batch"}
"""Keys that say how to compute, not what; the model is checked separately."""
_CHOSEN = {"seed", "source", "method"}
"""Keys that choose a part of a table."""
_VIT_SMALL = {"hidden_size": 384, "num_hidden_layers": 12, "patch_size": 16}


def flaws(entries: Sequence[Entry], copies: Mapping[str, Copy], given: Iterable[str]) -> list[str]:
    """Return why these runs, with the keys that a user gave, are no reproduction; empty if they are one."""
    reasons: dict[str, None] = {}
    for name, copy in copies.items():
        specs = [entry.cell.spec for entry in entries if entry.block.dataset == name]
        if specs:
            reasons |= dict.fromkeys(copy.flaws(load_data(specs[0])))
            reasons |= dict.fromkeys(_other_protocol(specs, protocol(name), set(given) - _FREE))
    seeds = {entry.cell.spec.seed for entry in entries}
    if 0 < len(seeds) < len(SEEDS):
        reasons[f"{len(seeds)} of at least {len(SEEDS)} seeds"] = None
    return list(reasons)


def _other_protocol(
    specs: Sequence[RunSpec], paper: Mapping[str, Any], given: Iterable[str]
) -> Iterator[str]:
    """Name the given keys whose values are not the paper's."""
    if not is_vit_small(specs[0].model, str(paper["model"])):
        yield f"model={specs[0].model} is not ViT-S/16"
    for spec in {(spec.method, spec.adaptation): spec for spec in specs}.values():
        row = {key: getattr(spec, key) for key in ("benchmark", "source", "method", "adaptation")}
        values, usual = spec.flat(), RunSpec.make(**{**paper, **row}).flat()
        for key in sorted(set(given) & set(values) - _CHOSEN):
            if values[key] != usual[key]:
                yield f"{key}={as_typed(values[key])} instead of {as_typed(usual[key])}"


def is_vit_small(model: str, usual: str) -> bool:
    """Whether a model has the paper's shape: the usual name, or a folder whose configuration says so."""
    if model == usual or model.startswith("timm:vit_small_patch16_224"):
        return True
    try:
        config = read_json(Path(model.removeprefix(HUGGING_FACE)) / "config.json")
        return model.startswith(HUGGING_FACE) and {key: config.get(key) for key in _VIT_SMALL} == _VIT_SMALL
    except (OSError, ValueError, AttributeError):
        return False
