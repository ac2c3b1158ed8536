"""The list that answers are held to where they leave a site and where they arrive."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedscal.client.style import style
from fedscal.client.terms.alignment import Alignment
from fedscal.core import weights
from fedscal.core.types import Groups, Package
from fedscal.flower.schema import FAILURE, NotAllowed, Schema, Schemas, handshake
from fedscal.methods import METHODS, build_objective, build_rule
from toys import CLASSES, SIDE, tiny_network

SOURCE = weights.snapshot(tiny_network().state_dict())
PACKAGE = Package(3, 0.1, {"server": SOURCE})
EVERY = {
    "client": "clinic-a",
    "version": "0.1",
    "classes_sha256": "0" * 64,
    "model_sha256": "f" * 64,
    "models": [],
    "transport": "fp32",
}
METRICS = {
    "images": 9,
    "entropy": 0.5,
    "infomax": 0.3,
    "snd": 1.0,
    "effective_classes": 2.5,
    "accuracy": 50.0,
}
TRAINED = {
    **EVERY,
    "models": ["weights"],
    "round": 3,
    "examples": 9,
    "epochs": [{"loss": 0.5, "entropy": 0.1}],
    "seconds": 1.5,
    "drift": 0.25,
    "metrics": METRICS,
}


def schemas(method: str = "fedloa") -> Schemas:
    objective, rule = build_objective(method, METHODS[method].adaptation, {}), build_rule(method, {})
    return Schemas(objective, rule, METHODS[method].profile, 1, SOURCE, CLASSES, (1, SIDE, SIDE))


def training(method: str = "fedloa") -> Schema:
    return schemas(method).training("clinic-a", 9, PACKAGE, "fp32")


def test_what_is_on_the_list_passes() -> None:
    training().check(TRAINED, {"weights": SOURCE})
    schemas().evaluation("clinic-a", 9).check({**EVERY, "metrics": METRICS}, {})
    handshake("clinic-a").check({**EVERY, "domain": "north", "images": 9}, {})
    FAILURE.check({"refused": "the loss is not finite any more; lower lr"}, {})


@pytest.mark.parametrize(
    "more",
    [
        {"path": "x"},
        {"client": "clinic-b"},
        {"version": "a text with spaces"},
        {"model_sha256": "f" * 63},
        {"models": ["weights", "memory"]},
        {"transport": "fp64"},
        {"round": 4},
        {"round": 3.0},
        {"examples": "9"},
        {"examples": 10},
        {"seconds": True},
        {"seconds": -1},
        {"drift": -0.1},
        {"epochs": [{"loss": "/data"}]},
        {"epochs": [{"entropy": 0.1}]},
        {"epochs": [{"loss": 0.5, "alignment.tau": 0.8}]},  # a scalar of another method
        {"epochs": [{"loss": 0.5}] * 2},
        {"metrics": {**METRICS, "accuracy": [1, 2]}},
        {"metrics": {**METRICS, "accuracy": 100.1}},
        {"metrics": {**METRICS, "entropy": 1.2}},  # ln 3 is 1.1
        {"metrics": {**METRICS, "effective_classes": 0.5}},
        {"metrics": {**METRICS, "domain": 1.0}},
    ],
    ids=str,
)
def test_what_is_not_on_the_list_does_not(more: dict[str, Any]) -> None:
    with pytest.raises(NotAllowed, match=next(iter(more))):
        training().check({**TRAINED, **more}, {"weights": SOURCE})


def test_errors_made_together_leave_a_site_only_where_the_server_teaches() -> None:
    joint = {**METRICS, "received_accuracy": 50.0, "both_wrong": 10.0}
    scalars = {f"alignment.{name}": 0.5 for name in Alignment.scalars}
    aligned = {**TRAINED, "epochs": [{"loss": 0.5, "entropy": 0.1, **scalars}]}
    training("fedscal").check({**aligned, "metrics": joint}, {"weights": SOURCE})
    training("fedscal").check(aligned, {"weights": SOURCE})
    with pytest.raises(NotAllowed, match="metrics"):
        training("fedscal").check({**aligned, "metrics": {**joint, "both_wrong": 101.0}}, {"weights": SOURCE})
    with pytest.raises(NotAllowed, match="metrics"):
        training().check({**TRAINED, "metrics": joint}, {"weights": SOURCE})
    with pytest.raises(NotAllowed, match="metrics"):
        schemas("fedscal").evaluation("clinic-a", 9).check({**EVERY, "metrics": joint}, {})


@pytest.mark.parametrize("reason", ["cannot read /data/scan.png", "x" * 301, "a\nb", "a\u2028b", 7, None])
def test_a_refusal_is_one_sentence_without_a_path(reason: object) -> None:
    with pytest.raises(NotAllowed, match="refused is"):
        FAILURE.check({"refused": reason}, {})


@pytest.mark.parametrize(
    ("groups", "odd"),
    [
        ({"weights": {**SOURCE, "images": torch.zeros(2)}}, "weights/images"),
        ({"weights": {**SOURCE, "head.bias": torch.zeros(3, 32, 32)}}, "weights/head.bias"),
        ({"weights": SOURCE, "memory:previous": {"w": torch.zeros(1)}}, "memory:previous/w"),
        ({"weights": SOURCE, "report:local_classifier": {"mean": torch.zeros(1)}}, "report:local_classifier"),
        ({"weights": SOURCE, "profile": {"amplitude": torch.zeros(1, 3, 3)}}, "profile/amplitude"),
        ({}, "is missing"),
    ],
)
def test_only_the_models_own_tensors_pass(groups: Groups, odd: str) -> None:
    with pytest.raises(NotAllowed, match=odd):
        training().check(TRAINED, groups)


def test_a_report_is_held_to_the_methods_row_by_name_and_shape() -> None:
    matrix, row = torch.zeros(CLASSES, 5), torch.zeros(CLASSES)
    told = {"weight": matrix, "bias": row, "mean": matrix, "variance": matrix, "share": row}
    training("dualadapt").check(TRAINED, {"weights": SOURCE, "report:local_classifier": told})
    for odd in ({**told, "mean": torch.zeros(CLASSES, 6)}, {**told, "images": row}):
        with pytest.raises(NotAllowed, match="report:local_classifier/"):
            training("dualadapt").check(TRAINED, {"weights": SOURCE, "report:local_classifier": odd})


def test_a_comparison_is_one_number() -> None:
    schema = schemas("fedsite").comparison("clinic-a")
    schema.check({**EVERY, "unlikeness": 2.5}, {})
    for odd in ({"unlikeness": -1.0}, {"unlikeness": 1.0, "more": 1.0}, {}):
        with pytest.raises(NotAllowed):
            schema.check({**EVERY, **odd}, {})


def test_a_profile_is_held_to_the_methods_row_by_name_and_shape() -> None:
    schema = schemas("ladd").profile("clinic-a")
    told = style(torch.ones(4, 1, SIDE, SIDE, dtype=torch.uint8))
    schema.check(EVERY, {"profile": told})
    with pytest.raises(NotAllowed, match=r"profile/amplitude' is torch.float32 \(1, 9, 9\)"):
        schema.check(EVERY, {"profile": {"amplitude": torch.zeros(1, 9, 9)}})
    with pytest.raises(NotAllowed, match="asks for no profile"):
        schemas("fedloa").profile("clinic-a")
