"""Grids of runs: keys may have several values, a grid is their product, a recipe may join several grids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from fedscal.core.errors import UsageError, shown
from fedscal.core.options import Keys, as_typed
from fedscal.data.registry import benchmark
from fedscal.experiment.spec import RunSpec

GRIDS = "grid"
"""The name of the tables in a recipe, ``[[grid]]``, of which each spans a grid of its own."""
SINGULAR = {"methods": "method", "adaptations": "adaptation", "sources": "source", "seeds": "seed"}
"""The names under which ``fedscal compare`` takes several values of a key."""
_OUTER = ("benchmark", "method", "adaptation")
_INNER = ("seed", "source")


def refuse_several(keys: Keys) -> None:
    """Refuse keys of several runs where one run is expected."""
    if GRIDS in keys:
        raise UsageError("a recipe with [[grid]] tables spans several runs: use fedscal compare.")
    for name, value in keys.items():
        if len(_values(value)) > 1:
            text = ",".join(map(as_typed, _values(value)))
            raise UsageError(
                f"{name}={shown(text)} spans several runs: give one value, or use fedscal compare."
            )


def union(recipe: Keys, *later: Keys) -> list[RunSpec]:
    """Return the runs of a recipe's grids, each once and in order; later keys override, the last wins.

    The recipe holds the keys that all grids share, and the grids' own in ``grid``.
    """
    common = {name: value for name, value in recipe.items() if name != GRIDS}
    tables = recipe.get(GRIDS, [{}])
    if not (isinstance(tables, list) and tables and all(isinstance(table, Mapping) for table in tables)):
        raise UsageError(f"{GRIDS}: needs tables of keys, each under the heading [[{GRIDS}]].")
    specs: dict[str, RunSpec] = {}
    for table in tables:
        for spec in _specs(_join(common, table, *later)):
            specs.setdefault(spec.digest(), spec)
    return list(specs.values())


def _join(*layers: Keys) -> dict[str, object]:
    """Join layers of keys under their singular names, the later winning."""
    joined: dict[str, object] = {}
    for layer in layers:
        for plural, singular in SINGULAR.items():
            if plural in layer and singular in layer:
                raise UsageError(f"{plural} and {singular} are the same key: give one of them.")
        joined |= {SINGULAR.get(name, name): value for name, value in layer.items()}
    return joined


def _specs(keys: Keys) -> Iterator[RunSpec]:
    """Yield the product; neighbours differ in source or seed, so they do not wait for one source model."""
    axes = {name: _values(value) for name, value in keys.items()}
    varied = [name for name, values in axes.items() if len(values) > 1]
    domains: dict[str, Sequence[str]] = {}
    outer = sorted((name for name in axes if name not in _INNER), key=lambda name: name not in _OUTER)
    for values in product(*(axes[name] for name in outer)):
        cell = dict(zip(outer, values, strict=True))
        sources = axes.get("source") or _sources(cell, domains)
        for seed, source in product(axes.get("seed", [RunSpec.seed]), sources):
            yield _spec({**cell, "seed": seed, "source": source}, varied)


def _sources(cell: Keys, domains: dict[str, Sequence[str]]) -> Sequence[str]:
    """Return all sources of a cell's data, read once per grid; a given source model needs none."""
    if cell.get("source_model"):
        return [""]
    name = str(cell.get("benchmark", RunSpec.benchmark))
    if name not in domains:
        domains[name] = benchmark(name).domains
    return domains[name]


def _spec(cell: Keys, varied: Sequence[str]) -> RunSpec:
    """Build a cell without the hyper-parameters that its method does not declare."""
    try:
        declared = RunSpec.make(**cell).flat()
    except UsageError as error:
        where = ", ".join(f"{name}={as_typed(cell[name])}" for name in varied)
        raise UsageError(f"{error} (in the run {where})" if where else str(error)) from error
    return RunSpec.make(**{name: value for name, value in cell.items() if name in declared})


def _values(value: object) -> list[object]:
    """Return the values of a key, each once: a list, or text with commas; no value gives one empty text."""
    items = value if isinstance(value, list) else value.split(",") if isinstance(value, str) else [value]
    stripped = [item.strip() if isinstance(item, str) else item for item in items]
    distinct = {as_typed(item): item for item in stripped if item != ""}
    return list(distinct.values()) or [""]
