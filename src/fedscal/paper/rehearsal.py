"""A rehearsal: every table's runs on drawn images and with a small network, in a directory of its own.

Whoever has the data and a GPU for days learns before that what would go wrong for another reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedscal.core import files
from fedscal.core.errors import UsageError
from fedscal.core.extras import from_extra
from fedscal.core.options import Keys
from fedscal.core.rng import global_stream
from fedscal.experiment.spec import all_options
from fedscal.models.registry import HUGGING_FACE
from fedscal.paper.tables import CHOICES, COST, Block, chosen, has_source, methods_of, varied

SHARE = 0.02
"""Share of the images that are drawn if none is given: minutes, and still some for every client."""
_SIDE = 32
_QUICK = {"rounds": 2, "local_epochs": 1, "pretrain_epochs": 30, "seeds": 0, "image_size": _SIDE}
_NORMALISATION = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_NOTE = "rehearsal.json"
"""What makes a directory one of rehearsals."""


def claim(out: Path) -> None:
    """Take a directory for rehearsals; one that holds anything else is refused."""
    if (out / _NOTE).exists():
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out} holds other things than a rehearsal: give another --out.")
    files.write_json(out / _NOTE, {"rehearsal": "drawn images; no number in here means anything"})


def refuse(out: Path) -> None:
    """Keep tables out of a directory of rehearsals."""
    if (out / _NOTE).exists():
        raise UsageError(f"{out} holds a rehearsal: give another --out, or --rehearse.")


@contextmanager
def own_cache(out: Path) -> Iterator[None]:
    """Let decoded images and source models be kept in the rehearsal's directory, and gone with it."""
    before = os.environ.get("FEDSCAL_CACHE")
    os.environ["FEDSCAL_CACHE"] = str((out / "cache").absolute())
    try:
        yield
    finally:
        os.environ.pop("FEDSCAL_CACHE")
        os.environ.update({"FEDSCAL_CACHE": before} if before is not None else {})


def keys(blocks: Sequence[Block], given: Keys, out: Path) -> dict[str, object]:
    """Return the keys of a rehearsal of some blocks: few rounds, a small network, and what is given.

    Timed runs keep their number and their rounds: repeating them is what is rehearsed.
    """
    left = varied(blocks) | ({"seeds"} if "seed" in given or COST in blocks else set())
    quick = {key: value for key, value in _QUICK.items() if key not in left}
    side = int(all_options()["image_size"].parse(given.get("image_size") or _SIDE))
    model = {} if "model" in given else {"model": _small_vit(out / "model" / f"vit-{side}", side)}
    return {**quick, **model, **given}


def fitting(blocks: Sequence[Block], given: Keys) -> dict[str, object] | None:
    """Return those of the given keys, methods and sources that some blocks can have; None if no run is left.

    Tables that are rehearsed together differ in them.
    """
    keys = dict(given)
    methods, sources = (chosen(keys, *names) for names in CHOICES)
    mine = [name for name in methods if name in methods_of(blocks)]
    here = [name for name in sources if has_source(blocks, name)]
    if (methods and not mine) or (sources and not here):
        return None
    free = {key: value for key, value in keys.items() if key not in varied(blocks)}
    chosen_here = {"methods": ",".join(mine), "sources": ",".join(here)}
    return {**free, **{key: names for key, names in chosen_here.items() if names}}


def reason(share: float) -> str:
    """Say why a rehearsal is none of the paper's tables."""
    return (
        f"drawn images, {100 * share:.3g} % of the published number; nothing here says how good a method is"
    )


def _small_vit(folder: Path, side: int) -> str:
    """Return the name of a ViT of random weights for images of a side, as transformers saves one."""
    if not (folder / "preprocessor_config.json").exists():
        with from_extra("hf", "the rehearsal's network"):
            from transformers import ViTConfig, ViTModel
            from transformers.utils import logging
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it would break ours
        with global_stream(0, "rehearsal network", side), files.writing(folder):
            config = ViTConfig(  # ViT-S has 384, 12, 6 and 1,536; its patches of 16 pixels are kept
                hidden_size=48,
                num_hidden_layers=2,
                num_attention_heads=6,
                intermediate_size=192,
                image_size=side,
                patch_size=16,
            )
            ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
        files.write_json(folder / "preprocessor_config.json", _NORMALISATION)  # last: the folder is whole
    return f"{HUGGING_FACE}{folder.absolute()}"
