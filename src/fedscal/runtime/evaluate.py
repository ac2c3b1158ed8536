"""A client's metrics of a model on its own data: accuracy where it has labels, label-free signals always.

Together with source pre-training, this is the only part of the package that ever holds labels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedscal.core.types import Metrics, Prediction
from fedscal.models.steadiness import equal_share
from fedscal.runtime.signals import SIGNALS

JOINT = frozenset({"received_accuracy", "both_wrong"})
"""What ``joint_errors`` adds to the metrics of a client's own model."""


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """Return the percentage of predictions that equal the labels."""
    return 100.0 * float((predicted == labels).double().mean())


def effective_classes(predicted: Tensor, classes: int) -> float:
    """Return e^H of the predicted classes' shares: J if all are predicted alike, 1 if only one is."""
    shares = torch.bincount(predicted, minlength=classes).double() / len(predicted)
    return math.exp(float(-torch.xlogy(shares, shares).sum()))


def joint_errors(own: Prediction, received: Prediction, labels: Tensor) -> Metrics:
    """Return how right the received model is, and how often it and the client's own are wrong together, in %.

    The two are the teachers of FedSCAl's strong view. Were their errors independent, they would be wrong
    together as often as the product of their shares of errors says.
    """
    wrong, other = (model.logits.argmax(dim=1) != labels for model in (own, received))
    return {
        "received_accuracy": accuracy(received.logits.argmax(dim=1), labels),
        "both_wrong": 100.0 * float((wrong & other).double().mean()),
    }


def client_metrics(
    prediction: Prediction,
    pseudo_labels: Tensor | None,
    labels: Tensor | None,
    source_answers: Tensor | None = None,
) -> Metrics:
    """Return a client's metrics of a model.

    Args:
        prediction: the model on the client's whole data in evaluation view.
        pseudo_labels: the labels that the next local epoch would start from.
        labels: the true labels, if the client has any.
        source_answers: the classes that the source model predicts, to compare with.
    """
    predicted = prediction.logits.argmax(dim=1)
    signals = {
        "images": len(predicted),
        **{name: signal.compute(prediction) for name, signal in SIGNALS.items()},
        "effective_classes": effective_classes(predicted, prediction.logits.shape[1]),
    }
    if source_answers is not None:
        signals["agreement"] = equal_share(predicted, source_answers)
    if labels is None:
        return signals
    graded = {"accuracy": accuracy(predicted, labels)}
    if pseudo_labels is not None:
        graded["pseudo_label_accuracy"] = accuracy(pseudo_labels, labels)
    return graded | signals
