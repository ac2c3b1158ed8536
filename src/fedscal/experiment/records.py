"""What a run writes down, as typed values: a round, the summary, the environment, a checkpoint's manifest.

The fields are those of the files, in their order, see ``core.convert``. An unknown number is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from fedscal.core.convert import rest
from fedscal.core.errors import DataRefused
from fedscal.core.types import ClientId
from fedscal.runtime.memory import MemoryFile

AVERAGE = "average"
"""The name of the mean over the domains: no domain can have it."""


@dataclass(frozen=True)
class Scores:
    """Percentages by domain, and the mean over the domains, which is computed if it is not given."""

    domains: Mapping[str, float] = rest()
    average: float = math.nan

    def __post_init__(self) -> None:
        known = [value for value in self.domains.values() if math.isfinite(value)]
        if known and math.isnan(self.average):
            object.__setattr__(self, "average", fmean(known))

    def of(self, name: str) -> float:
        """Return a domain's number, or the average by its name."""
        return self.average if name == AVERAGE else self.domains.get(name, math.nan)

    @property
    def named(self) -> dict[str, float]:
        """All numbers by name, the average last."""
        return {**self.domains, AVERAGE: self.average} if self.domains else {}


NO_SCORES = Scores()


def by_domain(values: Mapping[ClientId, float], domains: Mapping[ClientId, str]) -> Scores:
    """Average clients within each domain; the mean over all counts every domain alike."""
    groups: dict[str, list[float]] = {}
    for client in sorted(values):
        groups.setdefault(domains[client], []).append(values[client])
    return Scores({domain: fmean(group) for domain, group in sorted(groups.items())})


def check_domains(domains: Iterable[str]) -> None:
    """Refuse a domain whose accuracy could not be told from the average in any record."""
    if AVERAGE in domains:
        raise DataRefused(
            f"no domain can be called '{AVERAGE}', as the mean over the domains is. Rename its folder."
        )


@dataclass(frozen=True, kw_only=True)
class ClientRecord:
    """A client in a round: the model that it judged, if it did, and its training if it took part.

    Attributes:
        signals: the label-free signals, by name.
        effective_classes: how many classes the model predicts in effect.
        agreement: the share of its images that the source model answers alike, if the run compares them.
        source_share: the source model's share in what answers there, if the site decides it.
        source_steadiness: of its strong views, the share that the source model answers like the image, then.
        unlikeness: of its images to those that the source model knows, in round 0; more than 1 is unlike.
        stale: 1 if the client was not reached and these are the numbers of an earlier round.
        drift: the distance of its own model from the one that it was sent.
        epochs: the scalars of every local epoch; None if it did not take part.
        local_accuracy: of its own model.
        received_accuracy: of the model that its own was trained from, if that taught it.
        both_wrong: the percentage of its images that both of these answer wrongly.
    """

    domain: str
    accuracy: float = math.nan
    pseudo_label_accuracy: float = math.nan
    images: float = math.nan
    signals: Mapping[str, float] = rest(strict=False)
    effective_classes: float = math.nan
    agreement: float = math.nan
    source_share: float = math.nan
    source_steadiness: float = math.nan
    unlikeness: float = math.nan
    stale: float = math.nan
    drift: float = math.nan
    seconds: float = math.nan
    bytes_down: float = math.nan
    bytes_up: float = math.nan
    epochs: Sequence[Mapping[str, float]] | None = None
    local_accuracy: float = math.nan
    received_accuracy: float = math.nan
    both_wrong: float = math.nan

    @property
    def judged(self) -> bool:
        """Whether the client judged the model of the round."""
        return not math.isnan(self.effective_classes)


NO_CLIENT = ClientRecord(domain="")
"""Stands for a client that a round does not name."""


@dataclass(frozen=True)
class RoundScores:
    """Accuracies of a round: of the server's model, and of the participants' own."""

    server: Scores = NO_SCORES
    clients: Scores = NO_SCORES


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Where time went."""

    pretrain: float = math.nan
    adapt: float
    evaluate: float = math.nan


@dataclass(frozen=True)
class Traffic:
    """Bytes of tensors that were sent to the clients, and by them."""

    down: float = math.nan
    up: float = math.nan


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One line of ``metrics.jsonl``; round 0 is the source model.

    Attributes:
        signals: the mean of every label-free signal over the clients that judged; none if nobody did.
        clients: those that judged or trained.
        failures: why a participant's reply is missing, by client.
        selected_round: the best round so far by the label-free signal.
        clients_sha256: of the file that has the clients in place of the line, where they are many.
    """

    round: int
    lr: float = math.nan
    participants: Sequence[ClientId]
    accuracy: RoundScores = RoundScores()
    pseudo_label_accuracy: Scores = NO_SCORES
    signals: Mapping[str, float]
    clients: Mapping[ClientId, ClientRecord]
    warnings: Sequence[str]
    failures: Mapping[ClientId, str]
    seconds: Seconds
    bytes: Traffic | None = None
    selected_round: int | None = None
    clients_sha256: str = ""

    @property
    def judged(self) -> bool:
        """Whether anybody judged the model of the round."""
        return bool(self.signals or self.accuracy.server.domains)

    @property
    def judges(self) -> dict[ClientId, ClientRecord]:
        """The clients that judged the model of the round."""
        return {client: row for client, row in self.clients.items() if row.judged}

    def client(self, name: ClientId) -> ClientRecord:
        """Return a client, or one of unknown numbers."""
        return self.clients.get(name, NO_CLIENT)

    @property
    def domains(self) -> dict[ClientId, str]:
        """The domain of every client."""
        return {client: record.domain for client, record in self.clients.items()}


@dataclass(frozen=True)
class Accuracies:
    """The accuracies that can be reported: four choices of a round; all empty without labels."""

    source_only: Scores = NO_SCORES
    last: Scores = NO_SCORES
    selected: Scores = NO_SCORES
    best: Scores = NO_SCORES

    @property
    def labelled(self) -> bool:
        """Whether any accuracy is known."""
        values = (*self.source_only.named.values(), *self.last.named.values())
        return any(map(math.isfinite, values))


@dataclass(frozen=True)
class ClientModels:
    """The accuracy of every client's latest own model on its own data."""

    last: Scores = NO_SCORES


@dataclass(frozen=True)
class Delivery:
    """The round whose model a run delivers by a choice without labels, and how far to trust it.

    Attributes:
        sites: those that need a look, which the reasons name or count.
        unchanged: those that go on with the source model, with statistics of their own.
    """

    round: int
    verdict: Literal["better", "unsure", "do not use"]
    reasons: Sequence[str] = ()
    sites: Sequence[ClientId] = ()
    unchanged: Sequence[ClientId] = ()

    def round_at(self, site: ClientId) -> int:
        """Return the round whose model a site uses; 0 is the source model."""
        return 0 if site in self.unchanged else self.round


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """``summary.json``: the result of a finished run."""

    benchmark: str | None
    source: str | None
    method: str | None
    adaptation: str | None
    seed: int | None
    rounds: int
    accuracy: Accuracies
    client_models: ClientModels = ClientModels()
    selected_round: int | None = None
    best_round: int | None = None
    pseudo_label_accuracy: float | None = None
    worse_domains: Sequence[str] | None = None
    seconds: Seconds
    weights_sha256: str | None
    delivery: Delivery | None = None
    warnings: Sequence[str] | None
    source_accuracy: float | None
    spec_sha256: str | None
    version: str | None


@dataclass(frozen=True, kw_only=True)
class UnderWay:
    """``progress.json``: what a run is doing; gone when its process has ended. Times are seconds since 1970.

    Attributes:
        started: when its process began.
        earlier: seconds that the rounds on record by then had taken.
        stage: what is being done: getting ready, or the method once the rounds have begun.
        since: when the stage began, or the present round.
        done: steps of the stage that are done: rounds, once they have begun.
        total: steps of the stage; 0 if nobody knows.
        round: the present round, 0 while the source model is judged; None before that.
        asked: who takes part in the present round.
        answered: who of them has answered, with weights or with a failure.
        connected: the sites of a federation that were there when the server last looked.
        missing: those that were not.
    """

    started: float
    earlier: float = 0.0
    stage: str = ""
    since: float
    done: int = 0
    total: int = 0
    round: int | None = None
    asked: Sequence[ClientId] = ()
    answered: Sequence[ClientId] = ()
    connected: Sequence[ClientId] = ()
    missing: Sequence[ClientId] = ()


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What of a machine can decide bits or seconds of a run; None where an older run does not say."""

    fedscal: str | None
    python: str | None
    torch: str | None
    platform: str | None
    machine: str | None
    processor: str | None
    cores: int | None
    threads: int | None
    device: str | None
    workers: int | None


@dataclass(frozen=True, kw_only=True)
class Environment(Machine):
    """``environment.json``: where a run was begun, and with what."""

    data_sha256: str
    images: Mapping[str, str] = field(default_factory=dict)
    spec_sha256: str
    source_model_sha256: str | None


@dataclass(frozen=True, kw_only=True)
class MergedRound:
    """A round whose replies are merged: all of its record but what the judgement of its model adds.

    Round 0, in which nobody trains, is one too. Clients are those that trained, without domain and judgement.
    """

    round: int
    lr: float = math.nan
    participants: Sequence[ClientId] = ()
    clients: Mapping[ClientId, ClientRecord] = field(default_factory=dict)
    failures: Mapping[ClientId, str] = field(default_factory=dict)
    seconds: Seconds = Seconds(adapt=0.0, evaluate=0.0)
    bytes: Traffic = Traffic(0, 0)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """``manifest.json`` of a checkpoint.

    Attributes:
        metrics_sha256: of ``metrics.jsonl`` when it was saved; empty if an early version wrote it.
        merged: the round, whose line comes when its model is judged; None if an earlier version wrote it,
            which saved a round after its line. Its clients, where they are many, are a file.
        files: the sha256 of its files.
        memories: where the clients' memories are.
        own: where the models of single clients are.
    """

    round: int
    metrics_sha256: str = ""
    merged: MergedRound | None = None
    files: Mapping[str, str]
    memories: Mapping[ClientId, MemoryFile]
    own: Mapping[ClientId, MemoryFile] = field(default_factory=dict)

    @property
    def lines(self) -> int:
        """How many lines ``metrics.jsonl`` had when the round was saved."""
        return self.round + (self.merged is None)


@dataclass(frozen=True, kw_only=True)
class Tracked:
    """Where a tracker follows a run: a row of ``trackers.json``, by the tracker's name.

    Attributes:
        run: the tracked run's name there.
        round: the last round that was handed on.
    """

    run: str
    round: int = -1
