"""Predict a folder of images: a label and its probability for each."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, overload

import numpy as np
import torch
from torch import Tensor

from fedscal.core import files
from fedscal.core.errors import DataRefused
from fedscal.core.table import Table
from fedscal.core.text import count
from fedscal.data.folders.benchmark import margin
from fedscal.data.folders.decode import Unreadable, decode
from fedscal.data.folders.scan import image_files
from fedscal.deploy.classifier import Classifier

_BATCH = 64
_SHOWN = 20
"""Answers that a notebook shows."""


@dataclass(frozen=True)
class Answer:
    """A model's prediction for a file, or for a row of a tensor; ``problem`` if the file is no image."""

    path: Path | int
    label: str = ""
    confidence: float = 0.0
    problem: str = ""


@dataclass(frozen=True, repr=False)
class Predictions(Sequence[Answer]):
    """A model's answers in the order of the images.

    Attributes:
        answers: one for each image.
        note: whose statistics the model used, if its sites have their own.
    """

    answers: Sequence[Answer]
    note: str = ""

    @property
    def labels(self) -> list[str]:
        """The predicted classes; empty for a file that is no image."""
        return [answer.label for answer in self.answers]

    @overload
    def __getitem__(self, row: int) -> Answer: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[Answer]: ...

    def __getitem__(self, row: int | slice) -> Answer | Sequence[Answer]:
        return self.answers[row]

    def __len__(self) -> int:
        return len(self.answers)

    def __repr__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return self._table().html()

    def _table(self) -> Table:
        rows = [
            [str(a.path), a.label, "" if a.problem else f"{a.confidence:.3f}", a.problem]
            for a in self.answers[:_SHOWN]
        ]
        more = [f"and {len(self) - _SHOWN} more"] if len(self) > _SHOWN else []
        notes = [*more, *([self.note] if self.note else [])]
        return Table(count(len(self), "prediction"), ("image", "label", "confidence", "problem"), rows, notes)


def files_at(path: Path) -> list[Path]:
    """Return the image files at or below a path; refuse a path without any."""
    paths = [path] if path.is_file() else image_files(path) if path.is_dir() else []
    if not paths:
        raise DataRefused(files.fault(path, "file or folder", "holds no image files."))
    return paths


def ask(classifier: Classifier, paths: Sequence[Path]) -> Iterator[Answer]:
    """Yield an answer for each file, in the order given."""
    for start in range(0, len(paths), _BATCH):
        yield from _batch(classifier, paths[start : start + _BATCH])


def refuse_misfit(classifier: Classifier, pixels: Tensor) -> None:
    """Refuse pixels that are not of the model's kind and shape."""
    if pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != classifier.shape:
        size = " x ".join(map(str, classifier.shape))
        raise DataRefused(
            f"the model takes uint8 images (n, {size}), not {pixels.dtype} of {tuple(pixels.shape)}."
        )


def ask_tensor(classifier: Classifier, pixels: Tensor) -> Iterator[Answer]:
    """Yield an answer for each uint8 image (n, C, H, W) of a tensor."""
    chances = [classifier.probabilities(batch).max(dim=1) for batch in torch.split(pixels, _BATCH)]
    pairs = [(c, n) for sure, number in chances for c, n in zip(sure.tolist(), number.tolist(), strict=True)]
    for row, (confidence, number) in enumerate(pairs):
        yield Answer(row, classifier.classes[number], confidence)


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
