"""The preset ``authors-code``: what it turns on, and each formula against numpy of its own."""

from __future__ import annotations

from importlib import resources

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from fedscal.client.step import Models, Step
from fedscal.client.term import Objective
from fedscal.client.terms.alignment import Alignment
from fedscal.client.terms.bmd import Bmd, balanced_prototypes, nearest_memberships, symmetric_cross_entropy
from fedscal.client.terms.proximal import Proximal
from fedscal.client.terms.shot import Shot
from fedscal.client.terms.ucon import Ucon
from fedscal.compare import grid
from fedscal.experiment.spec import RunSpec, read_recipe
from fedscal.methods import build_objective
from toys import backward, fixed_step, prediction, sweep, tensor_of

Array = npt.NDArray[np.float64]


def recipe() -> dict[str, object]:
    with resources.as_file(resources.files("fedscal.experiment.recipes") / "authors-code.toml") as path:
        return read_recipe(path)


def objective(method: str, adaptation: str) -> Objective:
    """Return the client's objective in a run of the preset."""
    (spec,) = grid.union(recipe(), {"method": method, "adaptation": adaptation, "sources": ["mnist"]})
    return build_objective(spec.method, spec.adaptation, spec.hyper)


SHOT = Shot(label_features="normalised")
BMD = Bmd(top_ratio=1, prototypes=5, prototype_passes=2, dynamic_label="nearest")
UCON = Ucon(neighbours=5, uncertain_ratio=1.1)
ALIGNMENT = Alignment(lambda_local=3, lambda_server=0.3, alignment_loss="bounded", server_labels="recomputed")


@pytest.mark.parametrize(
    ("method", "adaptation", "terms"),
    [
        ("fedloa", "shot", (SHOT,)),
        ("fedscal", "shot", (SHOT, ALIGNMENT)),
        ("fedscal", "bmd", (BMD, ALIGNMENT)),
        ("fedscal", "ucon", (UCON, ALIGNMENT)),
        ("fedprox", "shot", (SHOT, Proximal(proximal_norm="plain"))),
    ],
)
def test_the_preset_reaches_every_term_and_leaves_out_what_a_method_lacks(
    method: str, adaptation: str, terms: tuple[object, ...]
) -> None:
    assert objective(method, adaptation).terms == terms


@pytest.mark.parametrize(
    ("method", "adaptation", "key", "paper", "value"),
    [
        ("fedscal", "shot", "label_features", "raw", "normalised"),
        ("fedscal", "bmd", "prototype_passes", 1, 2),
        ("fedscal", "bmd", "dynamic_label", "membership", "nearest"),
        ("fedprox", "shot", "proximal_norm", "squared", "plain"),
    ],
)
def test_a_switch_works_alone_and_unless_given_is_the_papers(
    method: str, adaptation: str, key: str, paper: object, value: object
) -> None:
    usual = RunSpec.make(benchmark="digits", source="mnist", method=method, adaptation=adaptation)
    switched = usual.replace(**{key: value})
    assert (usual.flat()[key], switched.flat()[key]) == (paper, value)
    assert {name for name in usual.flat() if usual.flat()[name] != switched.flat()[name]} == {key}
    assert usual.digest() != switched.digest()


# SHOT's prototypes


def unit(rows: Array) -> Array:
    lengths: Array = np.sqrt((rows**2).sum(axis=-1, keepdims=True))
    return rows / lengths


def shot_labels(features: Array, probabilities: Array) -> list[int]:
    """SHOT's labels, image by image: soft prototypes, then one refinement with hard ones."""
    points = unit(np.hstack([features, np.ones((len(features), 1))]))
    classes = probabilities.shape[1]
    predicted = set(probabilities.argmax(axis=1).tolist())
    weight = probabilities
    for _ in range(2):
        centres = {j: np.average(points, axis=0, weights=weight[:, j]) for j in predicted}
        labels = [max(centres, key=lambda j, g=g: g @ unit(centres[j])) for g in points]  # type: ignore[misc]
        weight, predicted = np.eye(classes)[labels], set(labels)
    return labels


def test_shot_labels_of_normalised_features_are_those_of_numpy() -> None:
    seeded = np.random.default_rng(1)
    features = seeded.normal(size=(60, 3)) * seeded.lognormal(sigma=1.5, size=(60, 1))  # lengths differ a lot
    logits = 2 * seeded.normal(size=(60, 4))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    whole = sweep(torch.tensor(logits).float(), torch.tensor(features).float())
    found = SHOT.prepare(whole, None)["pseudo_labels"].tolist()
    assert found == shot_labels(features, probabilities)
    assert found != Shot().prepare(whole, None)["pseudo_labels"].tolist(), "the switch must matter here"


# BMD: the second pass over the prototypes, and the dynamic label


def memberships_by_numpy(features: Array, prototypes: Array) -> Array:
    rows = []
    for g in features:
        best = np.array([max(float(g @ c) for c in of_class) for of_class in prototypes])
        rows.append(np.exp(best) / np.exp(best).sum())
    return np.array(rows)


def test_the_nearest_prototype_of_a_class_stands_for_it() -> None:
    # Class 0 has centres (1, 0) and (0, 1), class 1 twice (-1, 0). The image (0.6, 0.8) has the products 0.6
    # and 0.8 with the first, -0.6 with the second: e^0.8 / (e^0.8 + e^-0.6) = 0.802184.
    prototypes = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [-1.0, 0.0]]])
    label = nearest_memberships(torch.tensor([[0.6, 0.8]]), prototypes)
    assert label.tolist() == [pytest.approx([0.802184, 0.197816], abs=1e-6)]


def test_a_second_pass_builds_prototypes_from_the_images_nearest_to_the_first_ones() -> None:
    seeded = np.random.default_rng(2)
    features, first = unit(seeded.normal(size=(30, 4))), seeded.dirichlet(np.ones(3), size=30)
    top = 30 // 3  # r = 1: M = n / J
    expected = np.stack([features[np.argsort(-first[:, j])[:top]].mean(axis=0) for j in range(3)])
    near = memberships_by_numpy(features, expected[:, None])
    expected = np.stack([features[np.argsort(-near[:, j])[:top]].mean(axis=0) for j in range(3)])
    whole = sweep(torch.tensor(np.log(first)).float(), 7 * torch.tensor(features).float())
    found = Bmd(top_ratio=1, prototype_passes=2).prepare(whole, None)["prototypes"]
    np.testing.assert_allclose(found[:, 0].numpy(), expected, atol=1e-6)
    once = Bmd(top_ratio=1).prepare(whole, None)["prototypes"]
    assert not torch.allclose(found, once), "the second pass must matter here"


def test_the_authors_dynamic_label_has_a_gradient_and_ours_none() -> None:
    prototypes = balanced_prototypes(torch.eye(4)[:, :2] + 0.1, torch.eye(4)[:, :2].softmax(dim=1), 1, 2)
    state = {"pseudo_labels": torch.tensor([0, 1]), "prototypes": prototypes}
    logits = torch.tensor([[1.0, 0.0], [0.2, 0.5]])
    plain = torch.tensor([[2.0, 1.0], [0.5, 3.0]])

    def value(term: Bmd, features: Tensor) -> Tensor:
        return term.loss(fixed_step(logits, features=features), state)[0]

    options = {"alpha": 0.0, "information": False}
    for label, moves in {"nearest": True, "membership": False}.items():
        features = plain.clone().requires_grad_()
        loss = value(Bmd(**options, dynamic_label=label), features)  # type: ignore[arg-type]
        assert loss.requires_grad == moves
    nearest = Bmd(**options, dynamic_label="nearest")  # type: ignore[arg-type]
    by_numpy = memberships_by_numpy(unit(plain.double().numpy()), prototypes.double().numpy())
    expected = symmetric_cross_entropy(logits.double(), torch.tensor(by_numpy))
    assert value(nearest, plain).item() == pytest.approx(expected.item(), abs=1e-6)


# FedProx


def proximal(now: list[list[float]], received: list[list[float]]) -> tuple[Tensor, list[nn.Parameter]]:
    parameters = [nn.Parameter(torch.tensor(values)) for values in now]
    pairs = [(p, torch.tensor(values)) for p, values in zip(parameters, received, strict=True)]
    models = Models(lambda x: prediction(x), None, None, None, lambda: pairs, joint=False)
    step = Step(torch.arange(1), lambda: torch.zeros(1), lambda: torch.zeros(1), models)
    return Proximal(mu=0.2, proximal_norm="plain").loss(step, {})[0], parameters


def test_the_plain_distance_adds_up_over_tensors_and_pulls_each_alike() -> None:
    # Differences (3, -4) and (0.3, 0.4): mu/2 (5 + 0.5) = 0.55; each gradient is mu/2 times a direction.
    value, (far, near) = proximal([[4.0, -3.0], [0.3, 0.4]], [[1.0, 1.0], [0.0, 0.0]])
    backward(value)
    assert value.item() == pytest.approx(0.55)
    assert tensor_of(far.grad).tolist() == pytest.approx([0.06, -0.08])
    assert tensor_of(near.grad).tolist() == pytest.approx([0.06, 0.08])


def test_the_plain_distance_has_no_gradient_where_it_starts() -> None:
    value, (weight,) = proximal([[1.0, 2.0]], [[1.0, 2.0]])
    backward(value)
    assert (value.item(), tensor_of(weight.grad).tolist()) == (0, [0, 0])
