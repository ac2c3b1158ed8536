"""Export to ONNX, checked against the model that it came from."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedscal.core import files
from fedscal.core.errors import ModelRefused
from fedscal.core.extras import from_extra
from fedscal.deploy.classifier import Classifier

_TOLERANCE = 1e-4
_BATCH = 64


def require_onnx() -> None:
    """Name the extra that is missing, before anything is computed."""
    with from_extra("onnx", "ONNX"):
        import onnxscript  # noqa: F401, I001  torch's exporter needs it; its own error is long
        import onnxruntime  # noqa: F401


def export_onnx(classifier: Classifier, out: Path, sample: Tensor) -> float:
    """Write one ONNX file that takes pixels of 0 to 255 and returns logits; return the largest difference.

    Args:
        classifier: the model.
        out: the file.
        sample: uint8 images on which both must agree: the same class on all, logits within 1e-4.
    """
    data = _converted(classifier)
    difference = parity(classifier, data, sample)
    files.write_bytes(out, data)
    return difference


def parity(classifier: Classifier, data: bytes, sample: Tensor) -> float:
    """Return the largest difference of the logits; refuse an export that is not the model."""
    with from_extra("onnx", "ONNX"):
        import onnxruntime
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    batches = [batch.float() for batch in torch.split(sample, _BATCH)]
    theirs = np.concatenate([session.run(None, {"pixels": batch.numpy()})[0] for batch in batches])
    with torch.no_grad():
        ours = torch.cat([classifier.module(batch) for batch in batches]).numpy()
    gap = float(np.abs(theirs - ours).max())
    if gap > _TOLERANCE or (theirs.argmax(1) != ours.argmax(1)).any():
        raise ModelRefused(f"the export differs from {classifier.path} by {gap:.2g}; it was not written.")
    return gap


def _converted(classifier: Classifier) -> bytes:
    require_onnx()
    example = torch.zeros(2, *classifier.shape)
    # Torch's warnings about torchvision and its own deprecations do not concern the user.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        program = torch.onnx.export(
            classifier.module,
            (example,),
            input_names=["pixels"],
            output_names=["logits"],
            dynamic_shapes={"pixels": {0: torch.export.Dim("images", min=1)}},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    facts = {"classes": "\n".join(classifier.classes), "weights_sha256": classifier.card.weights_sha256}
    for key, value in facts.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    data: bytes = model.SerializeToString()
    return data
