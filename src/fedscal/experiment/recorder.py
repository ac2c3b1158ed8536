"""Writes a run down as it happens: metrics, checkpoints, models, summary."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from fedscal.core import files
from fedscal.core.convert import dump
from fedscal.core.types import ClientId, Weights
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.records import MergedRound, RoundRecord, RunSummary
from fedscal.experiment.run_directory import SITES, RunDirectory
from fedscal.experiment.source import SourceModel
from fedscal.models.store import model_files
from fedscal.runtime.own_models import StoredModel
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
        self._there: dict[str, str] = {}

    def begin(self, experiment: Experiment, source: SourceModel) -> None:
        """Remember what goes on the models' cards."""
        shares = _shares(experiment, source)
        self._card = replace(experiment.card, method=experiment.spec.method, class_shares=shares)
        self._source, self._source_card = source, experiment.card
        self._rule = experiment.rule

    def merged(self, merged: MergedRound, state: ServerState) -> None:
        """Write a round's state at once: what was merged is not lost while its model is being judged."""
        self._directory.checkpoints.save(merged, state, self._directory.journal.sha256)

    def round(self, record: RoundRecord, state: ServerState | None) -> None:
        """Write a round down. Its line comes last: until it is there, the model is judged again."""
        if state is None:
            return
        if record.round == 0:
            source = model_files("source", self._source.weights, self._source_card)
            self._directory.save_models(source.items())
        if record.selected_round == record.round:
            self._save_models("selected", state, record.round)
        self._directory.journal.append(record)

    def sites(self, statistics: Mapping[ClientId, Weights], rounds: Mapping[ClientId, int]) -> None:
        """Write each site's statistics beside the models."""
        written = (
            model_files(client, tensors, replace(self._card, round=rounds[client])).items()
            for client, tensors in statistics.items()
        )
        self._directory.save_models(itertools.chain.from_iterable(written), SITES)

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
        named = {name if one else f"{name}-{key}": model for key, model in models.items()}
        changed = {place: model for place, model in named.items() if not self._is_there(place, model)}
        written = (model_files(place, model, card).items() for place, model in changed.items())
        self._directory.save_models(itertools.chain.from_iterable(written))
        own = {place: model.sha256 for place, model in named.items() if isinstance(model, StoredModel)}
        self._there = self._there | own
        self._directory.forget_models(name, named)

    def _is_there(self, place: str, model: Weights) -> bool:
        """Whether a client's own model was written already: there may be thousands, and few change."""
        return isinstance(model, StoredModel) and self._there.get(place) == model.sha256
