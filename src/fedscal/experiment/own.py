"""``fedscal.adapt``: a run of a spec, or of what a program has at hand: a model, and images by site."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, overload

from torch import nn

from fedscal.core import files, weights
from fedscal.core.errors import UsageError
from fedscal.data.tensors import PREFIX as TENSORS
from fedscal.data.tensors import SiteImages, keep_tensors, tensors_benchmark
from fedscal.data.views import AugmentedViews
from fedscal.experiment import run
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.local import Federation
from fedscal.experiment.progress import told
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec
from fedscal.models.module import around_classifier, register_module
from fedscal.models.registry import MODELS, Shape
from fedscal.models.store import ModelCard, model_files

Sites = Mapping[str, SiteImages] | Path | str
_SIDE = 224
_KEY = 20
_ONE_PROCESS = "an nn.Module cannot be given to worker processes: the clients are trained one after the other"


@overload
def adapt(
    spec: RunSpec,
    out: Path | str,
    /,
    *callbacks: Callback,
    federation: Federation | None = None,
    progress: bool | Callable[[str], None] = False,
) -> RunDirectory: ...


@overload
def adapt(
    spec: RunSpec,
    /,
    *callbacks: Callback,
    out: Path | str,
    federation: Federation | None = None,
    progress: bool | Callable[[str], None] = False,
) -> RunDirectory: ...


@overload
def adapt(
    model: nn.Module | Path | str,
    sites: Sites,
    /,
    *callbacks: Callback,
    out: Path | str,
    classes: Sequence[str] = (),
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    progress: bool | Callable[[str], None] = False,
    **keys: Any,
) -> RunDirectory: ...


def adapt(
    what: Any, where: Any = None, /, *callbacks: Callback, out: Any = None, **options: Any
) -> RunDirectory:
    """Adapt a model to unlabelled sites, in a new directory; return the directory of the finished run.

    Either of a spec, ``adapt(spec, out)``, or of what is at hand:

        adapt(module, {"a": images, "b": loader}, classes=["cat", "dog"], out="runs/a")
        adapt("model", "sites", out="runs/b", rounds=6)  # a trained model's path, and a folder of sites

    Args:
        what: a ``RunSpec``; a trained classifier, whose last ``nn.Linear`` makes the logits; the path of a
            trained model; or the name of a network to be trained on the site ``source=``, which has labels.
        where: the directory of a spec's run. Else a folder of sites, or by the sites' names uint8 images
            (n, C, H, W), float ones with values from 0 to 1, either with labels as a pair, or a DataLoader of
            these that neither shuffles nor augments. Labels of a site only measure.
        callbacks: who is told what happens, see ``fedscal.Callback``.
        out: the directory; it must not hold a run.
        options: ``federation``, where a spec's clients are, on this machine if not given. ``progress``: True
            prints a line for every stage, round and warning; a function is given these lines. ``classes``:
            the names, in the order of a module's outputs. ``mean`` and ``std``: what a module's images are
            normalised by, from values of 0 to 1; not at all if not given. Every other one is a key of the
            run, see ``fedscal keys``.

    A run of an ``nn.Module`` stays in this process: ``workers=1``.
    """
    if isinstance(what, RunSpec):
        if isinstance(where, Callback):  # out is given by its name
            where, callbacks = None, (where, *callbacks)
        return run.adapt(what, where if out is None else out, *callbacks, **options)
    if out is None or where is None:
        raise UsageError("adapt(model, sites, out=DIRECTORY) needs all three.")
    tell = told(options.pop("progress", False))
    for callback in tell if isinstance(what, nn.Module) else ():
        callback.stage(_ONE_PROCESS, 0)
    return run.adapt(_spec(what, where, **options), out, *callbacks, *tell)


def _spec(
    model: nn.Module | Path | str,
    sites: Sites,
    classes: Sequence[str] = (),
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    **keys: Any,
) -> RunSpec:
    """Return the spec of what a program has at hand."""
    if not isinstance(model, nn.Module | Path | str):
        raise UsageError(f"adapt takes an nn.Module, or a model's path or name, not {type(model).__name__}.")
    data = keep_tensors(sites, classes) if isinstance(sites, Mapping) else str(sites)
    if isinstance(model, nn.Module):
        if keys.setdefault("workers", 1) != 1:
            raise UsageError(f"workers={keys['workers']}: {_ONE_PROCESS}.")
        if not isinstance(sites, Mapping) and not Path(sites).is_dir():
            raise UsageError(files.fault(Path(sites), "folder", "is not a folder of sites."))
        shape, views = _seen(data, mean, std, int(keys.pop("image_size", 0)) or _SIDE)
        model = _kept(model, shape, classes, views)
    if isinstance(model, Path) or (model not in MODELS and Path(model).exists()):
        return RunSpec.make(source_model=str(model), clients=data, **keys)
    return RunSpec.make(**{"model": model, "benchmark": data, "clients_per_domain": 1, **keys})


def _seen(data: str, mean: Sequence[float], std: Sequence[float], side: int) -> tuple[Shape, AugmentedViews]:
    """Return the shape and views of a module's images: tensors as they are, a folder's files as squares."""
    given = tensors_benchmark(data).shape if data.startswith(TENSORS) else None
    shape = given or (3, side, side)
    scale = tuple(mean) or (0.0,) * shape[0], tuple(std) or (1.0,) * shape[0]
    return shape, AugmentedViews(*scale, side=None if given else side, beyond=None, whole=not given)


def _kept(module: nn.Module, shape: Shape, classes: Sequence[str], views: AugmentedViews) -> Path:
    """Write a module to the cache as a source model, which answers exactly as it does; return its folder."""
    if not classes:
        raise UsageError("classes=[...] names what the module's outputs mean, in their order.")
    state = weights.snapshot(around_classifier(module, shape, len(classes)).state_dict())
    card = ModelCard(
        model=register_module(module),
        shape=shape,
        classes=tuple(classes),
        benchmark=None,
        source="",
        views=asdict(views),
    )
    contents = model_files("model", state, card)
    folder = files.cache_dir("modules", files.sha256(b"".join(contents.values()))[:_KEY])
    files.write_dir(folder, contents)
    return folder
