"""DualAdapt: Gaussians, the local classifier, and the alignment of the server's head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedscal.client.terms.local_classifier import LocalClassifier, softmax_regression
from fedscal.core.errors import ModelRefused
from fedscal.core.features import class_gaussians, discrepancy, probabilities, sample
from fedscal.core.types import Reply, Weights
from fedscal.methods import build_objective
from fedscal.server.rule import Briefing, ServerState
from fedscal.server.rules.dual_adapt import DualAdapt
from toys import backward, fixed_step, reply, sweep

SOURCE = {"w": torch.zeros(1), "head.weight": torch.eye(2), "head.bias": torch.zeros(2)}
GAUSSIANS = {"mean": 4 * torch.eye(2), "variance": torch.full((2, 2), 0.01)}


def test_discrepancy_by_hand() -> None:
    # |0.9 - 0.6| + |0.1 - 0.4| = 0.6 and 0: the mean is 0.3; opposite certainties are 2 apart.
    p, q = torch.tensor([[0.9, 0.1], [0.5, 0.5]]), torch.tensor([[0.6, 0.4], [0.5, 0.5]])
    assert discrepancy(p, q).item() == pytest.approx(0.3)
    assert discrepancy(torch.eye(2), torch.eye(2).flip(0)).item() == 2


def test_gaussians_by_hand() -> None:
    # Class 0: 1 and 3 in the first feature: mean 2, variance 1. Class 1: one image. Class 2: none.
    features = torch.tensor([[1.0, 5.0], [3.0, 5.0], [7.0, 8.0]])
    found = class_gaussians(features, torch.tensor([0, 0, 1]), 3)
    assert found["mean"].tolist() == [[2, 5], [7, 8], [0, 0]]
    assert found["variance"].tolist() == [[1, pytest.approx(1e-6)], pytest.approx([1e-6, 1e-6]), [1, 1]]
    assert found["share"].tolist() == pytest.approx([2 / 3, 1 / 3, 0])


def test_samples_have_the_mean_and_variance_of_their_class() -> None:
    gaussians = {"mean": torch.tensor([[1.0], [50.0]]), "variance": torch.tensor([[4.0], [0.0]])}
    drawn = sample(gaussians, torch.tensor([0] * 4000 + [1]), torch.Generator().manual_seed(0))
    assert drawn[:-1].mean().item() == pytest.approx(1, abs=0.1)
    assert drawn[:-1].std().item() == pytest.approx(2, abs=0.1)
    assert drawn[-1].item() == 50


def test_the_local_classifier_is_scikit_learns_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 3
    features = torch.randn(90, 4, generator=generator) + torch.eye(3, 4)[labels]
    weight, bias = softmax_regression(features, labels, 3, decay=0.1)
    oracle = LogisticRegression(C=1 / (90 * 0.1), tol=1e-8, max_iter=1000).fit(
        features.numpy(), labels.numpy()
    )
    ours = probabilities({"weight": weight, "bias": bias}, features).numpy()
    np.testing.assert_allclose(ours, oracle.predict_proba(features.numpy()), atol=1e-3)


def test_the_term_measures_the_discrepancy_with_the_local_classifier() -> None:
    # The head predicts (1/2, 1/2); the local classifier, on the feature (log 3, 0), (3/4, 1/4): 1/2 apart.
    state = {"weight": torch.eye(2), "bias": torch.zeros(2)}
    step = fixed_step(torch.zeros(1, 2), features=torch.tensor([[3.0, 1.0]]).log())
    value, _ = LocalClassifier(lambda_discrepancy=3.0).loss(step, state)
    assert value.item() == pytest.approx(3 * 0.5, abs=1e-6)


def test_the_report_is_the_classifier_and_the_mixture() -> None:
    term = LocalClassifier()
    state = term.prepare(sweep(torch.tensor([[5.0, 0.0], [4.0, 0.0], [0.0, 5.0]])), None)
    told = term.report(state)
    assert told.keys() == {"weight", "bias", "mean", "variance", "share"}
    assert told["mean"].tolist() == [[4.5, 0.0], [0.0, 5.0]]


def test_with_an_empty_slot_the_pseudo_labels_are_those_that_the_classifier_is_fitted_to() -> None:
    # The second image is predicted 1, but its feature points to the prototype of class 0.
    seen = sweep(
        torch.tensor([[3.0, 0.0], [0.0, 0.1], [0.0, 3.0]]),
        torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]),
    )
    objective = build_objective("dualadapt", "none", {})
    assert [term.name for term in objective.active] == ["local_classifier"]
    found = objective.pseudo_labels(seen)
    assert found is not None
    assert found.tolist() == [0, 0, 1]
    fitted = objective.prepare(seen, None)
    assert fitted[0]["share"].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert build_objective("fedscal", "none", {}).pseudo_labels(seen) is None


def test_by_default_a_client_fits_and_reports_and_its_features_feel_no_pull() -> None:
    features = torch.tensor([[3.0, 1.0]]).log().requires_grad_()
    step = fixed_step(torch.zeros(1, 2), features=features)
    value, _ = LocalClassifier().loss(step, {"weight": torch.eye(2), "bias": torch.zeros(2)})
    backward(value)
    assert value.item() == 0
    assert features.grad is not None
    assert features.grad.abs().max() == 0


def told(head: torch.Tensor, where: torch.Tensor) -> Weights:
    """Return a client's report: its classifier, and where its features lie."""
    variance = torch.full((2, 2), 0.01)
    share = torch.tensor([0.5, 0.5])
    return {"weight": head, "bias": torch.zeros(2), "mean": where, "variance": variance, "share": share}


def merged(rule: DualAdapt, *reports: Weights) -> ServerState:
    answers: list[Reply] = [
        replace(reply(f"c{n}", SOURCE), reports={"local_classifier": report})
        for n, report in enumerate(reports)
    ]
    return rule.merge(rule.init(Briefing(SOURCE, "w", gaussians=GAUSSIANS)), answers)


def test_the_head_moves_towards_the_clients_classifier_on_the_clients_features() -> None:
    # The client's features lie on the diagonal, where the server's head is undecided and the client's is not.
    where = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    theirs = torch.tensor([[2.0, 2.0], [0.0, 0.0]])
    gaps = {}
    for weight in (0.0, 1.0):
        state = merged(DualAdapt(lambda_agree=weight), told(theirs, where))
        server = state.models["server"]
        head = {"weight": server["head.weight"], "bias": server["head.bias"]}
        gaps[weight] = discrepancy(
            probabilities(head, where), probabilities(told(theirs, where), where)
        ).item()
        assert probabilities(head, GAUSSIANS["mean"]).argmax(dim=1).tolist() == [0, 1], "right on the source"
    assert gaps[1.0] < gaps[0.0] - 0.05


def test_no_steps_leave_the_head_alone_and_average_the_rest() -> None:
    state = merged(DualAdapt(head_steps=0), told(torch.eye(2), torch.eye(2)))
    assert torch.equal(state.models["server"]["head.weight"], SOURCE["head.weight"])


def test_a_report_of_enormous_numbers_cannot_spoil_the_head() -> None:
    huge = {name: tensor * 1e38 for name, tensor in told(torch.ones(2, 2), torch.ones(2, 2)).items()}
    state = merged(DualAdapt(), told(torch.eye(2), torch.eye(2)), huge)
    assert all(tensor.isfinite().all() for tensor in state.models["server"].values())


def test_a_source_model_without_gaussians_is_refused() -> None:
    with pytest.raises(ModelRefused, match="Gaussians of the source features"):
        DualAdapt().init(Briefing(SOURCE, "w"))
