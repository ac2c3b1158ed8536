"""Predict a folder of images: a label and its probability for each."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor

from fedscal.core.errors import DataRefused
from fedscal.data.folders.benchmark import margin
from fedscal.data.folders.decode import Unreadable, decode
from fedscal.data.folders.scan import image_files
from fedscal.deploy.classifier import Classifier

_BATCH = 64


@dataclass(frozen=True)
class Answer:
    """A model's prediction for a file; ``problem`` if it is no image."""

    path: Path
    label: str = ""
    confidence: float = 0.0
    problem: str = ""


def files_at(path: Path) -> list[Path]:
    """Return the image files at or below a path; refuse a path without any."""
    paths = [path] if path.is_file() else image_files(path)
    if not paths:
        raise DataRefused(f"{path} holds no image files.")
    return paths


def ask(classifier: Classifier, paths: Sequence[Path]) -> Iterator[Answer]:
    """Yield an answer for each file, in the order given."""
    for start in range(0, len(paths), _BATCH):
        yield from _batch(classifier, paths[start : start + _BATCH])


def _batch(classifier: Classifier, paths: Sequence[Path]) -> list[Answer]:
    answers: dict[Path, Answer] = {}
    pixels: dict[Path, Tensor] = {}
    for path in paths:
        try:
            pixels[path] = as_model_sees(path, classifier)
        except Unreadable as error:
            answers[path] = Answer(path, problem=str(error))
    if pixels:
        confidence, number = classifier.probabilities(torch.stack(list(pixels.values()))).max(dim=1)
        for path, c, n in zip(pixels, confidence.tolist(), number.tolist(), strict=True):
            answers[path] = Answer(path, classifier.classes[n], c)
    return [answers[path] for path in paths]


def as_model_sees(path: Path, classifier: Classifier) -> Tensor:
    """Decode a file to the channels and the side that a model takes; grey is the mean of the colours."""
    channels, side, _ = classifier.shape
    cropped = getattr(classifier.module.views, "side", None) is not None
    pixels = torch.from_numpy(decode(path, margin(side) if cropped else side))
    if channels == 3:
        return pixels
    return pixels.float().mean(dim=0, keepdim=True).round().to(torch.uint8)


def write_csv(answers: Iterable[Answer], file: TextIO) -> int:
    """Write ``file,label,confidence,problem``; return the number of files that were no image."""
    writer = csv.writer(file)
    writer.writerow(["file", "label", "confidence", "problem"])
    problems = 0
    for answer in answers:
        problems += bool(answer.problem)
        sure = "" if answer.problem else f"{np.float32(answer.confidence):.6f}"
        writer.writerow([answer.path, answer.label, sure, answer.problem])
    return problems
