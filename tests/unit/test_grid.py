"""Grids: every key an axis, unions of tables, each run once, and refusals that name the run."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from fedscal.compare import grid
from fedscal.core.errors import UsageError
from fedscal.experiment.spec import RunSpec, read_recipe
from fedscal.paper.tables import SYSTEMS

RECIPES = sorted(Path(str(resources.files("fedscal.experiment.recipes"))).glob("*.toml"))
ONE = {"source": "mnist", "seed": 0}


def seen(specs: list[RunSpec], *names: str) -> list[Any]:
    return [tuple(spec.flat().get(name) for name in names) for spec in specs]


def test_any_key_is_an_axis_and_the_grid_is_the_product() -> None:
    specs = grid.union({}, {**ONE, "tau_init": "0.7, 0.8", "lambda_local": "0,1", "rounds": "3"})
    assert seen(specs, "rounds", "tau_init", "lambda_local") == [
        (3, 0.7, 0.0),
        (3, 0.7, 1.0),
        (3, 0.8, 0.0),
        (3, 0.8, 1.0),
    ]


def test_neighbours_differ_in_source_or_seed() -> None:
    specs = grid.union({"seeds": [0, 1], "lr": [0.1, 0.2], "methods": ["fedloa", "fedscal"]})
    assert (
        seen(specs, "method", "lr", "seed", "source")[:8]
        == [
            ("fedloa", lr, seed, source)
            for lr in (0.1, 0.2)
            for seed in (0, 1)
            for source in ("mnist", "optdigits", "font")
        ][:8]
    )
    assert len(specs) == 24, "all sources of the benchmark, for none was given"


def test_a_list_and_text_with_commas_are_the_same() -> None:
    listed = grid.union({**ONE, "adaptive": [True, False], "tau_init": [0.7, 0.8]})
    assert listed == grid.union({**ONE, "adaptive": "true,false", "tau_init": "0.7,0.8"})


def test_what_a_method_does_not_declare_is_dropped_and_equal_runs_appear_once() -> None:
    specs = grid.union({**ONE, "methods": "fedloa,fedprox,fedscal", "tau_init": "0.7,0.8", "mu": "0.5"})
    assert [(spec.method, dict(spec.hyper)) for spec in specs] == [
        ("fedloa", {}),
        ("fedprox", {"mu": 0.5}),
        ("fedscal", {"tau_init": 0.7}),
        ("fedscal", {"tau_init": 0.8}),
    ]


def test_tables_are_joined_and_a_run_of_two_tables_appears_once() -> None:
    recipe = {
        **ONE,
        "lambda_local": 1,
        "lambda_server": 1,
        "grid": [{"lambda_local": [0.1, 1]}, {"lambda_server": [1, 3], "seeds": [0, 1]}],
    }
    assert seen(grid.union(recipe), "lambda_local", "lambda_server", "seed") == [
        (0.1, 1.0, 0),
        (1.0, 1.0, 0),
        (1.0, 1.0, 1),
        (1.0, 3.0, 0),
        (1.0, 3.0, 1),
    ]


def test_the_later_layers_stand_over_common_keys_and_tables_under_either_name() -> None:
    recipe = {"seeds": [0, 1], "source": "mnist", "grid": [{"method": "fedloa"}, {"methods": ["fedscal"]}]}
    specs = grid.union(recipe, {"seed": "5", "methods": "loa"}, {"seeds": "6"})
    assert seen(specs, "method", "seed") == [("loa", 6)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": 1, "seeds": "1,2"}, "seeds and seed are the same key: give one of them"),
        ({"methods": "fedloa,nope"}, r"method=nope: no such method.*\(in the run method=nope\)"),
        ({"rouns": "1,2"}, "unknown key 'rouns'"),
        ({"seeds": "0,a"}, "seed=a: needs a whole number"),
        ({"seeds": ""}, "seed=: needs a whole number"),
        ({"seeds": []}, "seed=: needs a whole number"),
        ({"methods": "fedloa", "tau_init": "0.7,7"}, "tau_init=7.0 is too large.*in the run tau_init=7"),
        ({"benchmark": "digitz"}, "did you mean 'digits'"),
        ({"grid": 3}, r"each under the heading \[\[grid\]\]"),
        ({"grid": []}, r"each under the heading \[\[grid\]\]"),
        ({"grid": [{"grid": [{}]}]}, "unknown key 'grid'"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_place(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grid.union(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grid": [{"seed": 1}]}, "spans several runs: use fedscal compare"),
        ({"tau_init": "0.7,0.8"}, "tau_init=0.7,0.8 spans several runs"),
        ({"adaptive": [True, False]}, "adaptive=true,false spans several runs"),
    ],
)
def test_a_single_run_refuses_what_spans_several(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grid.refuse_several(given)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_is_a_grid(path: Path) -> None:
    assert grid.union(read_recipe(path))
    assert path.read_text().startswith("# ")
    assert (
        f"fedscal compare {path.stem}" in path.read_text() or f"fedscal run {path.stem}" in path.read_text()
    )


def test_the_table_of_systems_has_every_method() -> None:
    (path,) = (path for path in RECIPES if path.stem == "systems")
    assert {spec.method for spec in grid.union(read_recipe(path))} == set(SYSTEMS)
