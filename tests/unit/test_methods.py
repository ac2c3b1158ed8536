"""The table of methods: names, what they are built of, and hyper-parameters that reach their part."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedscal.client.terms.alignment import Alignment
from fedscal.client.terms.contrastive import Contrastive
from fedscal.client.terms.distillation import Distillation
from fedscal.client.terms.local_classifier import LocalClassifier
from fedscal.client.terms.proximal import Proximal
from fedscal.client.terms.shot import Shot
from fedscal.client.terms.two_phase import TwoPhase
from fedscal.core.errors import UsageError
from fedscal.core.options import as_typed
from fedscal.experiment.spec import RunSpec
from fedscal.methods import METHODS, build_objective, build_rule, hyperparameters, parts_of
from fedscal.server.aggregation import Aggregation
from fedscal.server.rule import Frozen, Isolated
from fedscal.server.rules.average import Average
from fedscal.server.rules.dual_adapt import DualAdapt
from fedscal.server.rules.style_clusters import StyleClusters
from fedscal.server.rules.weighted_clusters import WeightedClusters


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("source-only", (Shot, Frozen)),
        ("loa", (Shot, Isolated)),
        ("fedloa", (Shot, Average)),
        ("fedprox", (Shot, Proximal, Average)),
        ("fedmoon", (Shot, Contrastive, Average)),
        ("fedwca", (Shot, TwoPhase, WeightedClusters)),
        ("ladd", (Shot, Distillation, StyleClusters)),
        ("dualadapt", (Shot, LocalClassifier, DualAdapt)),
        ("fedscal", (Shot, Alignment, Average)),
    ],
)
def test_what_the_papers_methods_are_made_of(name: str, parts: tuple[type, ...]) -> None:
    assert parts_of(name, "shot") == parts
    objective, rule = build_objective(name, "shot", {}), build_rule(name, {})
    assert (*(type(term) for term in objective.terms), type(rule)) == parts


def test_hyperparameters_reach_the_part_that_declares_them() -> None:
    values: dict[str, float | str] = {"lambda_local": 3.0, "beta": 0.1, "aggregation": "size", "mu": 9.0}
    assert build_objective("fedscal", "shot", values).terms == (Shot(beta=0.1), Alignment(lambda_local=3.0))
    assert build_objective("fedprox", "shot", values).terms == (Shot(beta=0.1), Proximal(mu=9.0))
    assert build_rule("fedscal", values) == Average(Aggregation("size"))


def test_a_name_shared_by_two_parts_keeps_both_defaults() -> None:
    assert {part: declared.default for part, declared in hyperparameters()["mu"]} == {
        Proximal: 0.01,
        Contrastive: 1.0,
    }


def test_keys_that_came_later_leave_the_digests_of_recorded_runs() -> None:
    """A key without ``later=True`` would give every old run another digest; so would another default."""
    recorded = {"fedloa": "7a52f724521d", "fedscal": "b2b357b213b7", "source-only": "b6f5fcb3bd5a"}
    specs = {name: RunSpec.make(method=name, source="mnist") for name in recorded}
    assert {name: spec.digest()[:12] for name, spec in specs.items()} == recorded
    assert specs["fedloa"].replace(server_optimizer="adam").digest() != specs["fedloa"].digest()


def test_unknown_names_lead_to_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'fedmoon'"):
        build_rule("fedmon", {})
    with pytest.raises(UsageError, match="did you mean 'shot'"):
        build_objective("fedloa", "shott", {})


def test_the_paper_s_defaults() -> None:
    alignment = Alignment()
    assert (alignment.tau_init, alignment.gamma_low, alignment.gamma_high) == (0.8, -0.1, 0.15)
    assert (alignment.lambda_local, alignment.lambda_server, alignment.adaptive) == (1.0, 1.0, True)
    assert (alignment.alignment_loss, alignment.server_labels) == ("kl", "cached")
    assert (Shot().beta, Proximal().mu, Contrastive().mu, Contrastive().temperature) == (0.5, 0.01, 1.0, 0.5)
    assert {name: row.adaptation for name, row in METHODS.items() if row.adaptation != "shot"} == {
        "ladd": "self-training",
        "dualadapt": "none",
        "fedsite": "ucon",
    }


def documented() -> dict[str, list[str]]:
    """Return the defaults that the tables of docs/methods.md name, by option."""
    page = Path(__file__).parents[2] / "docs" / "methods.md"
    tables = page.read_text().split("| option | default | meaning |\n")[1:]
    rows = [row.split("|") for table in tables for row in table.split("\n\n")[0].splitlines()[1:]]
    defaults: dict[str, list[str]] = {}
    for row in rows:
        defaults.setdefault(row[1].strip(" `"), []).append(row[2].strip(" `"))
    return defaults


def test_the_documented_options_are_those_declared_with_their_defaults() -> None:
    declared = {
        name: [as_typed(option.default) for _, option in parts] for name, parts in hyperparameters().items()
    }
    assert documented() == declared
