"""The main job: adapt a source model to the clients of a spec, round by round, to a run directory."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedscal.client.start import SERVER
from fedscal.core import files, weights
from fedscal.core.errors import UsageError
from fedscal.core.rng import compute_threads
from fedscal.core.types import ClientId, Metrics, Weights
from fedscal.core.version import __version__
from fedscal.experiment.announcer import Announcer
from fedscal.experiment.callbacks import Callback, Callbacks
from fedscal.experiment.checkpoint import Checkpoint
from fedscal.experiment.delivered import Delivered
from fedscal.experiment.delivery import AGREEMENT, judge_delivery, with_verdicts
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.local import Federation, Local
from fedscal.experiment.metrics import (
    left_out,
    merged_round,
    of_own_model,
    round_record,
    source_record,
    summarise,
    void_rounds,
)
from fedscal.experiment.progress import told
from fedscal.experiment.recorder import Recorder
from fedscal.experiment.records import MergedRound, RoundRecord, RunSummary
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.source import (
    SourceModel,
    poorly_trained,
    source_model,
    training_epochs,
    used_as_it_is,
)
from fedscal.experiment.spec import RunSpec, refuse_changes
from fedscal.runtime.messages import UNLIKENESS
from fedscal.server.rounds import Driver, Round, federate
from fedscal.server.rule import Briefing, ServerState

_AT_ONCE = 256
"""Clients whose numbers of their own models are in memory together, of which a record keeps few."""


def adapt(
    spec: RunSpec,
    out: Path | str,
    *callbacks: Callback,
    federation: Federation | None = None,
    progress: bool | Callable[[str], None] = False,
) -> RunDirectory:
    """Run a spec in a new directory; return the directory of the finished run.

    Args:
        spec: the run.
        out: the directory; it must not hold a run.
        callbacks: who is told what happens, see ``fedscal.Callback``.
        federation: where the clients are; on this machine if not given.
        progress: True prints a line for every stage, round and warning; a function is given these lines.
    """
    directory, federation = RunDirectory(Path(out)), federation or Local()
    announcer = Announcer(directory.path)
    events = Callbacks([Recorder(directory), announcer, *callbacks, *told(progress)])
    experiment = Experiment.build(spec)
    with files.only_process(directory.path), announcer:
        if directory.started:
            raise UsageError(f"{out} already holds a run. Go on with --resume {out}, or give another --out.")
        # Clients first: a run that cannot start must not look like one.
        experiment = experiment.with_clients(federation.clients(experiment, events))
        directory.begin(experiment)
        _execute(experiment, directory, federation, events)
    return directory


def resume(
    out: Path | str,
    *callbacks: Callback,
    federation: Federation | None = None,
    progress: bool | Callable[[str], None] = False,
    **changes: Any,
) -> RunDirectory:
    """Go on with a run after its last merged round, to the same bits as if it had never stopped.

    Only keys that move the last bits at most may be changed. What decides bits and is not as it was, such as
    the number of threads or the kind of CPU, is reported and recorded.
    """
    directory, federation = RunDirectory(Path(out)), federation or Local()
    announcer = Announcer(directory.path)
    events = Callbacks([Recorder(directory), announcer, *callbacks, *told(progress)])
    directory.spec()  # a directory without a run is an error before anything is made in it
    with files.only_process(directory.path), announcer:
        spec = directory.spec()
        refuse_changes(changes)
        experiment = Experiment.build(spec, spec.replace(**changes))
        experiment = experiment.with_clients(federation.clients(experiment, events))
        differences = directory.differences(experiment)
        for text in differences:
            events.warn(text)
        _execute(experiment, directory, federation, events, differences)
    return directory


def _execute(
    experiment: Experiment,
    directory: RunDirectory,
    federation: Federation,
    events: Callbacks,
    differences: Sequence[str] = (),
) -> None:
    spec = experiment.spec
    with directory.log(), compute_threads(experiment.execution.threads):
        directory.tidy()
        events.place(directory)
        checkpoint, records = _go_back(directory, events)
        with federation.driver(experiment, directory, events.client) as driver:
            events.stage(f"source model: {spec.source_model or spec.source}", training_epochs(experiment))
            source = source_model(experiment, events)
            run = _Run(experiment, source, driver, events, records, directory, differences)
            run.go(checkpoint)


def _go_back(directory: RunDirectory, events: Callbacks) -> tuple[Checkpoint | None, list[RoundRecord]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        last = directory.go_back()
    for warning in caught:
        events.warn(str(warning.message))
    return last


@dataclass
class _Run:
    """One execution: its parts, the records so far, and what differs from where the run was begun."""

    experiment: Experiment
    source: SourceModel
    driver: Driver
    events: Callbacks
    records: list[RoundRecord]
    directory: RunDirectory
    differences: Sequence[str] = ()

    def go(self, checkpoint: Checkpoint | None) -> None:
        """Run the rounds that are not done yet."""
        rule, schedule = self.experiment.rule, self.experiment.schedule
        self.events.begin(self.experiment, self.source)
        state = checkpoint.state if checkpoint else rule.init(self._briefing())
        self.events.stage(self.experiment.spec.method, schedule.rounds if rule.trains else 1)
        for record in self.records:
            self.events.round(record, None)
        state = self._rounds(state, self._begun(checkpoint, state))
        summary = self._summary(state)
        if self.experiment.training.statistics:
            self._hand_out(summary, state)
        self.events.end(summary, state)

    def _hand_out(self, summary: RunSummary, state: ServerState) -> None:
        """Let the sites take their statistics for the models that they are going to use."""
        parts = self.experiment
        delivered = Delivered(parts.rule, state, summary, self.source.weights, self.directory.selected)
        models = {client: delivered.model_at(client) for client in parts.layout.clients}
        self.events.sites(self.driver.statistics(models), {c: delivered.round_at(c) for c in models})

    def _briefing(self) -> Briefing:
        """Gather what the server needs before the first round; clients speak only if the method asks."""
        asked = self.experiment.method.profile is not None
        return Briefing(
            source=self.source.weights,
            first_layer=self.experiment.network.first_layer,
            rounds=self.experiment.spec.rounds,
            gaussians=self.source.gaussians,
            profiles=self.driver.profile() if asked else {},
            seed=self.experiment.spec.seed,
        )

    def _begun(
        self, checkpoint: Checkpoint | None, state: ServerState
    ) -> Sequence[MergedRound | RoundRecord]:
        """Return the rounds that are merged: the last may be yet to be judged, and round 0 is merged here."""
        last = checkpoint.merged if checkpoint else MergedRound(round=0)
        if last is None or last.round < len(self.records):
            return list(self.records)
        begun: list[MergedRound | RoundRecord] = [*self.records, last]
        if not checkpoint:
            self.events.merged(last, state)
        self._judge(last, state)
        return begun

    def _source_record(self, judged: Mapping[ClientId, Metrics], seconds: float) -> RoundRecord:
        layout, data = self.experiment.layout, self.experiment.data
        poor = poorly_trained(self.source.accuracy, len(data.classes))
        warnings = [text for text in (poor, used_as_it_is(self.experiment, self.source)) if text]
        warnings += [*left_out(layout.empty), *(data.folder.warnings() if data.folder else [])]
        return source_record(judged, layout.domains, seconds, warnings)

    def _compared(self, models: Mapping[ClientId, Weights]) -> Mapping[ClientId, Metrics]:
        """Let clients judge models, and say how unlike their images are if the network's statistics tell."""
        judged = self.driver.evaluate(models)
        found = self.driver.compare(models) if self.experiment.network.normalisers else {}
        return {c: {**m, **({UNLIKENESS: found[c]} if c in found else {})} for c, m in judged.items()}

    def _rounds(self, state: ServerState, begun: Sequence[MergedRound | RoundRecord]) -> ServerState:
        after, void = begun[-1].round, void_rounds(begun)
        parts = self.experiment
        seed = parts.spec.seed
        asked, storage = self.events.asked, self.directory.checkpoints.storage
        for done in federate(
            parts.rule, self.driver, state, parts.schedule, seed, after, void, asked, storage
        ):
            merged, state = self._with_own(done, state), done.state
            del done  # its replies: thousands of them are not kept while thousands of clients judge
            self.events.merged(merged, state)
            self._judge(merged, state)
        return state

    def _with_own(self, done: Round, before: ServerState) -> MergedRound:
        """Return what a round leaves, with the participants' judgement of the models that they have sent."""
        started = time.perf_counter()
        judges = set(self._judges(done.index))
        own = [reply for reply in done.replies if reply.client in judges]
        local: dict[ClientId, Metrics] = {}
        for some in (own[start : start + _AT_ONCE] for start in range(0, len(own), _AT_ONCE)):
            said = self.driver.evaluate_own(some, self._received(before, [reply.client for reply in some]))
            local |= {client: of_own_model(metrics) for client, metrics in said.items()}
        return merged_round(done, local, time.perf_counter() - started)

    def _judge(self, merged: MergedRound, state: ServerState) -> None:
        """Have the model of a round judged, and write its record when that is done.

        The source model is judged now, before anybody trains it for hours, and so is the last one, for which
        no exchange comes; the others at the latest with the exchange of the next round.
        """
        models = self._deployed(state, self._judges(merged.round))
        if models and 0 < merged.round < self.experiment.schedule.rounds:
            self.driver.judge(models, partial(self._judged, merged, state))
            return
        started = time.perf_counter()
        judged = self.driver.evaluate(models) if merged.round else self._compared(models)
        self._judged(merged, state, judged, time.perf_counter() - started)

    def _judged(
        self, merged: MergedRound, state: ServerState, judged: Mapping[ClientId, Metrics], seconds: float
    ) -> None:
        if merged.round == 0:
            record = self._source_record(judged, seconds)
        else:
            record = round_record(merged, judged, self.experiment.layout.domains, seconds)
        self._record(record, state)

    def _received(self, before: ServerState, clients: Iterable[ClientId]) -> Mapping[ClientId, Weights]:
        """Return what these clients were sent, where it taught them beside their own model."""
        if not self.experiment.objective.asks_server:
            return {}
        sent = ((client, self.experiment.rule.send(before, client)) for client in clients)
        return {client: models[SERVER] for client, models in sent if SERVER in models}

    def _judges(self, round_: int) -> Sequence[ClientId]:
        parts = self.experiment
        return parts.judging.sample(parts.layout.clients, parts.spec.seed, round_)

    def _deployed(self, state: ServerState, clients: Iterable[ClientId]) -> Mapping[ClientId, Weights]:
        return {client: self.experiment.rule.deployed(state, client) for client in clients}

    def _record(self, record: RoundRecord, state: ServerState) -> None:
        """Complete a record and hand it on; the first one of a resumed run says where bits may differ."""
        record = with_verdicts(record, self.records, self.experiment.spec.select)
        texts = [*record.warnings, *(f"{c}: {why}" for c, why in record.failures.items())]
        record, self.differences = replace(record, warnings=(*self.differences, *record.warnings)), ()
        self.records.append(record)
        self.events.round(record, state)
        for text in texts:
            self.events.warn(text)

    def _summary(self, state: ServerState) -> RunSummary:
        spec, models = self.experiment.spec, self.experiment.rule.delivered(state)
        return summarise(
            self.records,
            self.source.seconds,
            **{key: getattr(spec, key) for key in ("benchmark", "source", "method", "adaptation", "seed")},
            weights_sha256=weights.digest(models["server"])
            if "server" in models
            else weights.digest_of(models),
            source_accuracy=self.source.accuracy,
            delivery=judge_delivery(self.records) if spec.select == AGREEMENT else None,
            spec_sha256=spec.digest(),
            version=__version__,
        )
