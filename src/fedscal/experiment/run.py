"""The main job: adapt a source model to the clients of a spec, round by round, to a run directory."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from fedscal.core import files, weights
from fedscal.core.convert import dump
from fedscal.core.errors import UsageError
from fedscal.core.rng import compute_threads
from fedscal.core.types import ClientId, Weights
from fedscal.core.version import __version__
from fedscal.data.folders.benchmark import looked_at_once
from fedscal.experiment.build import (
    Layout,
    build_schedule,
    check_feasible,
    check_network,
    data_for,
    network_for,
)
from fedscal.experiment.checkpoint import Checkpoint
from fedscal.experiment.local import Embedded, Federation
from fedscal.experiment.metrics import (
    left_out,
    round_record,
    source_record,
    summarise,
    void_rounds,
    with_verdicts,
)
from fedscal.experiment.records import RoundRecord, RunSummary, check_domains
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.source import SourceModel, model_card, source_model
from fedscal.experiment.spec import RESUMABLE_KEYS, RunSpec
from fedscal.methods import build_rule, method
from fedscal.models.store import model_files
from fedscal.server.rounds import Driver, Round, Schedule, federate
from fedscal.server.rule import Briefing, ServerRule, ServerState

_SMALL = 64
"""A note of the server about a client is written on the model's card if it has no more numbers."""


class Listener(Protocol):
    """Who wants to hear how a run goes on."""

    def stage(self, name: str, total: int) -> None:
        """A stage of so many steps begins."""
        ...

    def advance(self) -> None:
        """A step of the stage is done."""
        ...

    def answered(self, client: ClientId) -> None:
        """A client of the present round has answered."""
        ...

    def round(self, line: RoundRecord) -> None:
        """A round is done and recorded."""
        ...

    def warn(self, text: str) -> None:
        """Something that a person should know."""
        ...


class Silent:
    """Nobody listens."""

    def stage(self, name: str, total: int) -> None:
        """Say nothing."""

    def advance(self) -> None:
        """Say nothing."""

    def answered(self, client: ClientId) -> None:
        """Say nothing."""

    def round(self, line: RoundRecord) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""


def adapt(
    spec: RunSpec,
    out: Path | str,
    listener: Listener | None = None,
    where: Callable[[RunSpec], Federation] = Embedded,
) -> RunDirectory:
    """Run a spec in a new directory; return the directory of the finished run."""
    directory, listener = RunDirectory(Path(out)), listener or Silent()
    check_network(spec)
    with files.only_process(directory.path), looked_at_once():
        if directory.started:
            raise UsageError(f"{out} already holds a run. Go on with --resume {out}, or give another --out.")
        federation = where(spec)
        layout = federation.find(listener)  # first: a run that cannot start must not look like one
        check_domains(map(layout.domain, layout.clients))
        check_feasible(spec, layout)
        directory.begin(spec)
        with directory.log(), compute_threads(spec.threads):
            _execute(spec, directory, federation, layout, listener)
    return directory


def resume(
    out: Path | str,
    listener: Listener | None = None,
    where: Callable[[RunSpec], Federation] = Embedded,
    **changes: Any,
) -> RunDirectory:
    """Go on with a run after its last finished round, to the same bits as if it had never stopped.

    Only keys that move the last bits at most may be changed. What decides bits and is not as it was, such as
    the number of threads or the kind of CPU, is told and recorded.
    """
    directory, listener = RunDirectory(Path(out)), listener or Silent()
    directory.spec()  # a directory without a run is an error before anything is made in it
    with files.only_process(directory.path), looked_at_once():
        spec = directory.spec()
        refused = sorted(set(changes) - RESUMABLE_KEYS)
        if refused:
            raise UsageError(
                f"{refused[0]} cannot change in a resumed run, only {', '.join(sorted(RESUMABLE_KEYS))}."
            )
        check_network(spec)
        here = spec.replace(**changes)
        federation = where(here)
        layout = federation.find(listener)
        moved = directory.moved(spec, here.threads)
        for text in moved:
            listener.warn(text)
        with directory.log(), compute_threads(here.threads):
            _execute(spec, directory, federation, layout, listener, moved)
    return directory


def _execute(
    spec: RunSpec,
    directory: RunDirectory,
    federation: Federation,
    layout: Layout,
    listener: Listener,
    moved: Sequence[str] = (),
) -> None:
    directory.tidy()
    found, lines = _go_back(directory, listener)
    with federation.driver(layout, directory, listener.answered) as driver:
        listener.stage(f"source model: {spec.source_model or spec.source}", spec.pretrain_epochs)
        source = source_model(spec, listener.advance)
        _Run(spec, directory, layout, source, driver, listener, lines, moved).go(found)


def _go_back(directory: RunDirectory, listener: Listener) -> tuple[Checkpoint | None, list[RoundRecord]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", UserWarning)
        found = directory.go_back()
    for warning in heard:
        listener.warn(str(warning.message))
    return found


@dataclass
class _Run:
    """The parts of one execution, what differs from the one before, and the lines recorded so far."""

    spec: RunSpec
    directory: RunDirectory
    layout: Layout
    source: SourceModel
    driver: Driver
    listener: Listener
    lines: list[RoundRecord]
    moved: Sequence[str] = ()

    @property
    def domains(self) -> dict[ClientId, str]:
        """The domain of every client."""
        return {client: self.layout.domain(client) for client in self.layout.clients}

    def go(self, found: Checkpoint | None) -> None:
        """Run the rounds that are not done yet, then write the summary, the model and the report."""
        rule, schedule = build_rule(self.spec.method, self.spec.hyper), build_schedule(self.spec, self.layout)
        state = found.state if found else rule.init(self._briefing())
        self.listener.stage(self.spec.method, schedule.rounds if rule.trains else 1)
        if not found:
            self._record_source(rule, state)
        for line in self.lines:
            self.listener.round(line)
        state = self._rounds(rule, schedule, state)
        self._finish(state)

    def _briefing(self) -> Briefing:
        """Gather what the server needs before the first round; clients speak only if the method asks."""
        asked = method(self.spec.method).profile is not None
        return Briefing(
            source=self.source.weights,
            first_layer=network_for(self.spec, data_for(self.spec)).first_layer,
            rounds=self.spec.rounds,
            gaussians=self.source.gaussians,
            profiles=self.driver.profile() if asked else {},
        )

    def _record_source(self, rule: ServerRule, state: ServerState) -> None:
        started = time.perf_counter()
        self.directory.save_model(model_files("source", self.source.weights, model_card(self.spec)))
        judged = self.driver.evaluate(self._deployed(rule, state))
        seconds, folder = time.perf_counter() - started, data_for(self.spec).folder
        warned = [*left_out(self.layout.empty), *(folder.warnings() if folder else [])]
        line = source_record(judged, self.domains, seconds, warned)
        for text in line.warnings:
            self.listener.warn(text)
        self._save(with_verdicts(line, [], self.spec.select), state)

    def _rounds(self, rule: ServerRule, schedule: Schedule, state: ServerState) -> ServerState:
        after, void = self.lines[-1].round, void_rounds(self.lines)
        for done in federate(rule, self.driver, state, schedule, self.spec.seed, after, void):
            state = done.state
            line = with_verdicts(self._judge(rule, done), self.lines, self.spec.select)
            self._save(line, state)
            self.listener.round(line)
            for text in [*line.warnings, *(f"{c}: {why}" for c, why in line.failures.items())]:
                self.listener.warn(text)
        return state

    def _judge(self, rule: ServerRule, done: Round) -> RoundRecord:
        started = time.perf_counter()
        judged = self.driver.evaluate(self._deployed(rule, done.state))
        local = self.driver.evaluate({reply.client: reply.weights for reply in done.replies})
        return round_record(done, judged, local, self.domains, time.perf_counter() - started)

    def _deployed(self, rule: ServerRule, state: ServerState) -> Mapping[ClientId, Weights]:
        return {client: rule.deployed(state, client) for client in self.layout.clients}

    def _save(self, line: RoundRecord, state: ServerState) -> None:
        """Record a round. The checkpoint comes last: until it is there, the round was never done.

        The first one tells what is not as it was when the run was begun: from there on bits are mixed.
        """
        line, self.moved = replace(line, warnings=(*self.moved, *line.warnings)), ()
        self.lines.append(line)
        self.directory.journal.append(line)
        if line.selected_round == line.round:
            self._save_models("selected", state, line.round)
        self.directory.checkpoints.save(line.round, state, self.directory.journal.sha256)

    def _save_models(self, name: str, state: ServerState, round_: int) -> None:
        # Notes about a client are named kind/client: its cluster, the shares of its blend.
        notes = {n: t.tolist() for n, t in state.notes.items() if "/" in n and t.numel() <= _SMALL}
        card = replace(model_card(self.spec), method=self.spec.method, round=round_, notes=notes)
        one = len(state.models) == 1
        contents: dict[str, bytes] = {}
        for key, model in state.models.items():
            contents |= model_files(name if one else f"{name}-{key}", model, card)
        self.directory.save_model(contents, instead_of=name)

    def _finish(self, state: ServerState) -> None:
        self._save_models("last", state, self.lines[-1].round)
        files.write_json(self.directory.path / "summary.json", dump(self._summary(state)))

    def _summary(self, state: ServerState) -> RunSummary:
        spec, models = self.spec, state.models
        return summarise(
            self.lines,
            self.source.seconds,
            **{key: getattr(spec, key) for key in ("benchmark", "source", "method", "adaptation", "seed")},
            weights_sha256=weights.digest(
                models["server"] if "server" in models else weights.flatten(models)
            ),
            source_accuracy=self.source.accuracy,
            spec_sha256=spec.digest(),
            version=__version__,
        )
