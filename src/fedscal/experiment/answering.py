"""Make ``answers.json`` of a finished run: ask its models about the clients' images, and sum up."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.errors import ModelRefused, first_line
from fedscal.core.rng import compute_threads
from fedscal.core.types import ClientId, Progress, Weights
from fedscal.experiment.answers import ANSWERS, Answers, Bins, DomainAnswers, Labelled, Point
from fedscal.experiment.ask import Asked, Told, ask
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.delivered import Delivered
from fedscal.experiment.examples import pick_examples
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.load import load_run
from fedscal.experiment.local import Local
from fedscal.experiment.plane import to_plane
from fedscal.experiment.records import RunSummary
from fedscal.experiment.run_directory import RunDirectory
from fedscal.models.store import load_model
from fedscal.server.rule import ServerState

_BINS = 10
_DIGITS = 4
_LARGEST = 400_000
"""Numbers in the confusion matrices of all domains together: a megabyte, read in less than a second."""
_log = logging.getLogger(__name__)


class Asking(Callback):
    """At the end of a run on this machine, writes ``answers.json`` unless it is there and of this model.

    The run is complete without it: what goes wrong is told, and kept in ``events.log``.
    """

    def __init__(self, directory: Path, progress: Callback) -> None:
        self._directory, self._progress = RunDirectory(directory), progress

    def begin(self, experiment: Experiment, source: object) -> None:
        """Remember the parts of the run: they are loaded, and serve once more."""
        self._experiment = experiment

    def end(self, summary: RunSummary, state: ServerState) -> None:
        """Ask, now that the summary is written."""
        try:
            if load_run(self._directory.path).answers is None:
                write_answers(self._directory, self._experiment, state, self._progress)
        except Exception as error:  # whatever it is, the run must end well
            _log.warning("no %s", ANSWERS, exc_info=True)
            self._progress.warn(f"what the models answer is not on the page: {first_line(error)}")


def ask_again(
    run: RunDirectory | Path | str, *, images: bool = False, progress: Callback | None = None
) -> Answers:
    """Ask the models of a finished run anew about its images, which must be on this machine and unchanged.

    Args:
        run: the run, or its directory.
        images: keep small pictures of some images in ``answers.json``.
        progress: is told how it goes.
    """
    directory = run if isinstance(run, RunDirectory) else RunDirectory(Path(run))
    last, told = directory.summary().rounds, progress or Callback()
    experiment = Experiment.build(directory.spec())
    experiment = experiment.with_clients(Local().clients(experiment, told))
    directory.differences(experiment)  # refuses other data and another source model
    found = directory.checkpoints.latest()
    if not found or found.round != last:
        raise ModelRefused(f"{directory.checkpoints.folder} does not hold the run's last round, {last}.")
    with compute_threads(experiment.spec.threads):
        return write_answers(directory, experiment, found.state, told, images)


def write_answers(
    directory: RunDirectory,
    experiment: Experiment,
    state: ServerState,
    progress: Progress,
    images: bool = False,
) -> Answers:
    """Ask both models, and write down what they answer; ``images``: with small pictures of some."""
    summary, source = directory.summary(), load_model(directory.path / "model", "source")[0]
    delivered = Delivered(experiment.rule, state, summary, source, directory.selected)

    def model_at(client: ClientId) -> Weights:
        own = directory.at_site(client) if experiment.training.statistics else {}
        return {**delivered.model_at(client), **own}

    progress.stage("asking the source model and the delivered one", len(experiment.layout.clients) + 1)
    asked = ask(experiment, source, model_at, progress)
    points, projection = _points(asked)
    progress.advance()
    made = Answers(
        classes=experiment.data.classes,
        model_sha256=summary.weights_sha256 or "",
        round=summary.delivery.round if summary.delivery else summary.rounds,
        domains=_domains(asked, len(experiment.data.classes)),
        projection=projection,
        points=points,
        examples=pick_examples(asked, experiment.data) if images else (),
    )
    # Without spaces: a matrix with a line for each number would be several times as large.
    text = json.dumps(dump(made), ensure_ascii=False, separators=(",", ":"))
    files.write_bytes(directory.path / ANSWERS, f"{text}\n".encode())
    return made


def _domains(asked: Mapping[str, Asked], classes: int) -> dict[str, DomainAnswers]:
    graded = 2 * len(asked) * classes**2 <= _LARGEST
    return {domain: _domain(one, classes, graded) for domain, one in asked.items()}


def _domain(asked: Asked, classes: int, graded: bool) -> DomainAnswers:
    before, after, truth = asked.before, asked.after, asked.labels if graded else None
    return DomainAnswers(
        images=len(asked.rows),
        changed=int((before.answers != after.answers).sum()),
        predicted_before=torch.bincount(before.answers, minlength=classes).tolist(),
        predicted_after=torch.bincount(after.answers, minlength=classes).tolist(),
        before=None if truth is None else _labelled(before, truth, classes),
        after=None if truth is None else _labelled(after, truth, classes),
    )


def _labelled(told: Told, truth: Tensor, classes: int) -> Labelled:
    confusion = torch.bincount(truth * classes + told.answers, minlength=classes**2)
    number = (told.confidence * _BINS).long().clamp(max=_BINS - 1)
    images = torch.bincount(number, minlength=_BINS)
    right = (told.answers == truth).double()
    sure, hit = (
        torch.bincount(number, weights=values, minlength=_BINS) / images.clamp(min=1)
        for values in (told.confidence.double(), right)
    )
    return Labelled(
        confusion=confusion.view(classes, classes).tolist(),
        bins=Bins(images=images.tolist(), confidence=_rounded(sure), right=_rounded(hit)),
        calibration_error=round(float((images * (sure - hit).abs()).sum() / len(truth)), _DIGITS),
    )


def _rounded(values: Tensor) -> list[float]:
    return [round(value, _DIGITS) for value in values.tolist()]


def _points(asked: Mapping[str, Asked]) -> tuple[list[Point], str]:
    """Return the marked images in the plane, those of both models and of all domains placed together."""
    before = torch.cat([one.before.features for one in asked.values()])
    after = torch.cat([one.after.features for one in asked.values()])
    placed, projection = to_plane(torch.cat([before, after]))
    pairs = zip(*(map(_pair, part.tolist()) for part in placed.chunk(2)), strict=True)
    return [
        Point(domain=domain, before=first, after=second, answer=answer, label=label)
        for (domain, answer, label), (first, second) in zip(_marked(asked), pairs, strict=True)
    ], projection


def _marked(asked: Mapping[str, Asked]) -> Iterator[tuple[str, int, int | None]]:
    for domain, one in asked.items():
        for place in one.marked.nonzero().flatten().tolist():
            label = None if one.labels is None else int(one.labels[place])
            yield domain, int(one.after.answers[place]), label


def _pair(point: list[float]) -> tuple[float, float]:
    """Return a point with three digits: enough to be drawn."""
    x, y = (float(f"{value:.3g}") for value in point)
    return x, y
