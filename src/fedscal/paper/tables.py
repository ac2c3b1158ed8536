"""Which runs make a table of the paper: its blocks, their rows, and the keys of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import chain
from pathlib import Path

from fedscal.compare import grid
from fedscal.compare.execute import Cell, cells_of
from fedscal.core.errors import UsageError, nearest, shown
from fedscal.core.options import Keys, Value
from fedscal.experiment.spec import read_recipe
from fedscal.methods import METHODS
from fedscal.paper.datasets import DATASETS, Copy, DataSet
from fedscal.paper.printed import AVERAGE, accuracies

SEEDS = (0, 1, 2)
"""With fewer seeds a table is not a reproduction."""
_FROM_DATA = ("benchmark", "clients", "source_model")
CHOICES = (("methods", "method"), ("sources", "source"))
"""The keys that choose a part of a table."""


@dataclass(frozen=True)
class Variant:
    """A row of a printed table, and the keys of the runs that belong to it."""

    title: str
    keys: Mapping[str, Value]

    @property
    def method(self) -> str:
        """The name of the row's method."""
        return str(self.keys["method"])


@dataclass(frozen=True)
class Block:
    """One printed table, or one figure, on one data set.

    Attributes:
        name: its name in the results; also in ``results.csv`` if the paper prints it.
        dataset: the name of the data set.
        adaptation: the local adaptation, as printed.
        variants: its rows.
        only: the sources that it is about; all if not given.
        folder: where its runs are. Tables share runs, but not those whose clock counts.
    """

    name: str
    dataset: str
    adaptation: str
    variants: tuple[Variant, ...]
    only: tuple[str, ...] = ()
    folder: str = "cells"

    @property
    def sources(self) -> tuple[str, ...]:
        """The domains that source models are trained on, as the paper calls them."""
        return self.only or self.domains

    @property
    def domains(self) -> tuple[str, ...]:
        """All domains of the data set, as the paper calls them."""
        return tuple(DATASETS[self.dataset].domains)

    def method(self, title: str) -> str:
        """Return the name of the method of the row with this title."""
        return next(variant.method for variant in self.variants if variant.title == title)

    @property
    def averages_only(self) -> bool:
        """Whether the paper prints no accuracy of a single target."""
        return {target for _, _, target in accuracies(self.name)} <= {AVERAGE}


def _of_method(name: str, **keys: Value) -> Variant:
    return Variant(METHODS[name].title, {"method": name, **keys})


def _valued(name: str, values: Sequence[float]) -> tuple[Variant, ...]:
    return tuple(Variant(f"{name}={value:g}", {"method": "fedscal", name: value}) for value in values)


def _choice(title: str, adaptation: str, **on_domainnet: Value) -> tuple[Block, ...]:
    """Return the three tables of another local adaptation, with the keys that it has on DomainNet."""
    names = {f"main-{adaptation}": "office-home"}
    names |= {f"supp-{adaptation}-{data}": data for data in ("office-home", "domainnet")}
    blocks = []
    for name, data in names.items():
        keys: dict[str, Value] = {"adaptation": adaptation, **(on_domainnet if data == "domainnet" else {})}
        rows = tuple(_of_method(method, **keys) for method in ("fedloa", "fedscal"))
        blocks.append(Block(name, data, title, rows))
    return tuple(blocks)


SYSTEMS = ("source-only", "loa", "fedloa", "fedprox", "fedmoon", "fedwca", "ladd", "dualadapt", "fedscal")
"""The systems of the paper's tables; methods that are added to the package do not belong here."""
_SYSTEMS = tuple(map(_of_method, SYSTEMS))
_ABLATION = (
    Variant("neither alignment", {"method": "fedloa"}),  # FedSCAl with both weights 0, bit for bit
    Variant("client alignment", {"method": "fedscal", "lambda_server": 0}),
    Variant("server alignment", {"method": "fedscal", "lambda_local": 0}),
    Variant("both alignments", {"method": "fedscal"}),
)
_THRESHOLD = (
    Variant("fixed threshold", {"method": "fedscal", "adaptive": False}),
    Variant("adaptive threshold", {"method": "fedscal"}),
)
CLOCKED_ROUNDS = 4
"""Rounds of the cost table's runs: the first is not counted, and late ones are among the others."""
COST = Block(
    "supp-cost",
    "office-home",
    "SHOT",
    tuple(
        _of_method(name, rounds=CLOCKED_ROUNDS) for name in ("fedloa", "fedprox", "fedwca", "ladd", "fedscal")
    ),
    ("Art",),  # the paper does not say on which data it took the time
    folder="clocked",
)
TAU = Block("figure-tau", "office-home", "SHOT", _valued("tau_init", (0.1, 0.4, 0.7, 0.8, 1, 1.1)))
LAMBDAS = tuple(
    Block(f"figure-{name}", "domainnet", "SHOT", _valued(name, (0.1, 0.3, 1, 3, 10)), ("Quickdraw",))
    for name in ("lambda_local", "lambda_server")
)
BARS = Block("main-office-home", "office-home", "SHOT", _SYSTEMS)
_PAIR = replace(BARS, variants=tuple(map(_of_method, ("fedloa", "fedscal"))))
_ALIGNED = replace(BARS, variants=(_of_method("fedscal"),))
FIGURES: Mapping[str, tuple[Block, ...]] = {
    "figure-bars": (BARS,),
    "figure-label-gaps": (_PAIR,),
    "figure-entropies": (_ALIGNED,),
    "figure-tau": (TAU,),
    "figure-tsne": (_PAIR,),
    "figure-lambdas": LAMBDAS,
    "figure-errors": (_ALIGNED,),
}
"""The runs that each figure is drawn from. The last is the supplement's section 10, which has none."""
TABLES: Mapping[str, tuple[Block, ...]] = {
    "office-home": (BARS,),
    "domainnet": (Block("main-domainnet", "domainnet", "SHOT", _SYSTEMS),),
    "office-31": (Block("supp-office-31", "office-31", "SHOT", _SYSTEMS),),
    "ablation": (Block("main-ablation", "office-home", "SHOT", _ABLATION),),
    "threshold": (Block("main-threshold", "domainnet", "SHOT", _THRESHOLD),),
    "bmd": _choice("BMD", "bmd"),
    "ucon": _choice("UCon", "ucon", neighbours=2),
    "cost": (COST,),
    "figures": (BARS, TAU, *LAMBDAS),
    **FIGURES,
}
WHOLE = tuple(name for name in TABLES if name not in FIGURES)
"""The tables, and all figures together."""


def table(name: str) -> tuple[Block, ...]:
    """Return the blocks of a table, or suggest the nearest name."""
    if name not in TABLES:
        raise UsageError(f"'{shown(name)}' is no table or figure of the paper{nearest(name, TABLES)}")
    return TABLES[name]


def figures_of(name: str) -> tuple[str, ...]:
    """Return the figures that are drawn for a table: all, itself, or none."""
    return tuple(FIGURES) if name == "figures" else (name,) if name in FIGURES else ()


def datasets_of(blocks: Sequence[Block]) -> list[DataSet]:
    """Return the data sets that blocks are about, each once."""
    return [DATASETS[name] for name in dict.fromkeys(block.dataset for block in blocks)]


@dataclass(frozen=True)
class Entry:
    """A run, and where its result belongs."""

    block: Block
    variant: Variant
    source: str
    cell: Cell


def protocol(dataset: str) -> dict[str, object]:
    """Return the paper's keys for a data set."""
    with resources.as_file(resources.files("fedscal.experiment.recipes") / f"{dataset}.toml") as path:
        return read_recipe(path)


def entries(blocks: Sequence[Block], copies: Mapping[str, Copy], given: Keys, out: Path) -> list[Entry]:
    """Return the runs of some blocks on the user's data sets, to be made below ``out`` in this order.

    All rows of the first seed come first. Of the given keys ``methods``, ``sources`` and ``seeds`` choose,
    others override the paper's.
    """
    keys = dict(given)
    methods, sources = (chosen(keys, *names) for names in CHOICES)
    check_names(blocks, methods, sources)
    _check_keys(blocks, keys)
    seeds = {"seeds": keys.pop("seeds", keys.pop("seed", list(SEEDS)))}
    grid.refuse_several(keys)
    parts = (
        _runs(block, variant, copies[block.dataset], {**keys, **seeds}, sources, out)
        for block in blocks
        if block.dataset in copies
        for variant in block.variants
        if not methods or variant.method in methods
    )
    return [entry for _, entry in sorted(enumerate(chain.from_iterable(parts)), key=_turn)]


def _turn(numbered: tuple[int, Entry]) -> tuple[int, int]:
    """Return when a run's turn is; clocked ones go there and back, as a machine gets hot or busy."""
    place, entry = numbered
    seed = entry.cell.spec.seed
    return seed, -place if entry.block == COST and seed % 2 else place


def _runs(
    block: Block, variant: Variant, copy: Copy, keys: Keys, sources: Sequence[str], out: Path
) -> list[Entry]:
    chosen = {copy.dataset.domain(name) for name in sources} if sources else set(block.sources)
    wanted = {copy.folders[source]: source for source in block.sources if source in chosen}
    if not wanted:
        return []
    recipe = {**protocol(block.dataset), **variant.keys}
    specs = grid.union(recipe, {**keys, "benchmark": str(copy.root), "sources": list(wanted)})
    cells = cells_of(specs, out / block.folder)
    return [Entry(block, variant, wanted[cell.spec.source], cell) for cell in cells]


def chosen(keys: dict[str, object], plural: str, singular: str) -> list[str]:
    """Take a choice of rows or sources out of the keys."""
    text = str(keys.pop(plural, keys.pop(singular, "")))
    return [name for part in text.split(",") if (name := part.strip())]


def varied(blocks: Sequence[Block]) -> set[str]:
    """Return the keys that the rows of some blocks differ in, or have by themselves."""
    return {key for block in blocks for variant in block.variants for key in variant.keys}


def _check_keys(blocks: Sequence[Block], keys: Keys) -> None:
    """Refuse keys that would change the table."""
    for key in keys:
        if key in _FROM_DATA:
            raise UsageError(f"{key}: the data of a table are given by --data.")
        if key in varied(blocks) | {"adaptation", "adaptations", grid.GRIDS}:
            raise UsageError(f"{key} is what the table is about; use fedscal compare to choose it.")


def check_names(blocks: Sequence[Block], methods: Sequence[str], sources: Sequence[str]) -> None:
    """Refuse names that no row and no source has."""
    for name in methods:
        if name not in methods_of(blocks):
            raise UsageError(f"methods={shown(name)}: no row of the table{nearest(name, methods_of(blocks))}")
    for name in sources:
        if not has_source(blocks, name):
            domains = {domain for block in blocks for domain in block.sources}
            raise UsageError(f"sources={shown(name)}: no source of the table{nearest(name, domains)}")


def methods_of(blocks: Sequence[Block]) -> set[str]:
    """Return the names of the methods that some blocks have rows of."""
    return {variant.method for block in blocks for variant in block.variants}


def has_source(blocks: Sequence[Block], name: str) -> bool:
    """Whether some blocks have a source of this name, however it is written."""
    return any(DATASETS[block.dataset].domain(name) in block.sources for block in blocks)


def distinct_cells(entries: Sequence[Entry]) -> list[Cell]:
    """Return the cells of some entries, each once: tables share runs."""
    return list({entry.cell.directory.path: entry.cell for entry in entries}.values())
