"""Writes a run down as it happens: metrics, checkpoints, models, summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.types import ClientId, Weights
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.records import RoundRecord, RunSummary
from fedscal.experiment.run_directory import SITES, RunDirectory
from fedscal.experiment.source import SourceModel
from fedscal.models.store import model_files
from fedscal.server.rule import ServerState

_SMALL = 64
"""What the server keeps about a client is written on the model's card if it has no more numbers."""


def _shares(experiment: Experiment, source: SourceModel) -> tuple[float, ...] | None:
    """Return the class shares of source training, where clients estimate their own."""
    if not experiment.spec.estimates_shares:
        return None
    classes, known = len(experiment.data.classes), source.known.class_shares
    return (1 / classes,) * classes if known is None else tuple(known.tolist())


class Recorder(Callback):
    """The first callback of every run: what it has written, a kill cannot undo."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory

    def begin(self, experiment: Experiment, source: SourceModel) -> None:
        """Remember what goes on the models' cards."""
        shares = _shares(experiment, source)
        self._card = replace(experiment.card, method=experiment.spec.method, class_shares=shares)
        self._source, self._source_card = source, experiment.card
        self._rule = experiment.rule

    def round(self, record: RoundRecord, state: ServerState | None) -> None:
        """Write a round. The checkpoint comes last: until it is there, the round was never done."""
        if state is None:
            return
        directory, index = self._directory, record.round
        if index == 0:
            directory.save_model(model_files("source", self._source.weights, self._source_card))
        directory.journal.append(record)
        if record.selected_round == index:
            self._save_models("selected", state, index)
        directory.checkpoints.save(index, state, directory.journal.sha256)

    def sites(self, statistics: Mapping[ClientId, Weights], rounds: Mapping[ClientId, int]) -> None:
        """Write each site's statistics beside the models."""
        for client, tensors in statistics.items():
            written = model_files(client, tensors, replace(self._card, round=rounds[client]))
            self._directory.save_model({f"{SITES}/{name}": data for name, data in written.items()})

    def end(self, summary: RunSummary, state: ServerState) -> None:
        """Write the last model and the summary, which marks the run as finished.

        A last model that the run does not deliver is not called last: commands would take it.
        """
        rejected = summary.delivery and summary.delivery.round != summary.rounds
        self._save_models("rejected" if rejected else "last", state, summary.rounds)
        files.write_json(self._directory.path / "summary.json", dump(summary))

    def _save_models(self, name: str, state: ServerState, round_: int) -> None:
        notes = {key: fact.tolist() for key, fact in state.facts().items() if fact.numel() <= _SMALL}
        card = replace(self._card, round=round_, notes=notes)
        models = self._rule.delivered(state)
        one = len(models) == 1
        contents: dict[str, bytes] = {}
        for key, model in models.items():
            contents |= model_files(name if one else f"{name}-{key}", model, card)
        self._directory.save_model(contents, instead_of=name)
