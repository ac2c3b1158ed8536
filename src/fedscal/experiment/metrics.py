"""From the clients' scalars to one record per round, and from the records to a summary. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from statistics import fmean
from typing import Any

from fedscal.core.convert import convert, dump
from fedscal.core.errors import some
from fedscal.core.types import ClientId, Metrics, Reply
from fedscal.core.weights import byte_count, byte_count_of
from fedscal.experiment.client_table import Rows, column, domains_of, gathered, judges
from fedscal.experiment.records import (
    NO_CLIENT,
    NO_SCORES,
    Accuracies,
    ClientModels,
    ClientRecord,
    MergedRound,
    RoundRecord,
    RoundScores,
    RunSummary,
    Scores,
    Seconds,
    Traffic,
    by_domain,
)
from fedscal.runtime.signals import SIGNALS
from fedscal.server.rounds import Round

_NAMED = 3
_COLLAPSED = 0.5
_FEWEST_IMAGES = 20
"""Of fewer images than that, the number of predicted classes says nothing."""
COMPARABLE = 50
"""Images that are enough to tell whether they are like others: the statistics of fewer are too rough."""
Clients = Mapping[ClientId, ClientRecord]


def source_record(
    judged: Mapping[ClientId, Metrics],
    domains: Mapping[ClientId, str],
    seconds: float,
    warnings: Sequence[str] = (),
) -> RoundRecord:
    """Return the record of round 0: the source model on every client, before any adaptation."""
    clients = gathered(((c, _row(domains[c], found)) for c, found in judged.items()), len(judged))
    return RoundRecord(
        round=0,
        participants=(),
        **_means(clients),
        clients=clients,
        warnings=(*doubtful_source(clients), *unlike_images(clients), *warnings),
        failures={},
        seconds=Seconds(adapt=0.0, evaluate=seconds),
        bytes=Traffic(0, 0),
        selected_round=0,
    )


def merged_round(done: Round, local: Mapping[ClientId, Metrics], seconds: float) -> MergedRound:
    """Return a round but for the judgement of its model.

    Args:
        done: the round.
        local: what is kept of those participants' own models who judge in the round, see ``of_own_model``.
        seconds: the time that these took.
    """
    return MergedRound(
        round=done.index,
        lr=done.lr,
        participants=done.participants,
        clients=gathered(_trained(done, local), len(done.replies)),
        failures={failure.client: failure.reason for failure in done.failures},
        seconds=Seconds(adapt=done.seconds, evaluate=seconds),
        bytes=Traffic(sum(done.bytes_down.values()), sum(map(bytes_up, done.replies))),
    )


def _trained(done: Round, local: Mapping[ClientId, Metrics]) -> Rows:
    for reply in done.replies:
        own = local.get(reply.client, {})
        row = ClientRecord(
            domain="",
            drift=reply.drift,
            seconds=reply.seconds,
            bytes_down=done.bytes_down[reply.client],
            bytes_up=bytes_up(reply),
            epochs=reply.epochs,
            local_accuracy=own.get("local_accuracy", math.nan),
            received_accuracy=own.get("received_accuracy", math.nan),
            both_wrong=own.get("both_wrong", math.nan),
        )
        yield reply.client, row


def of_own_model(metrics: Metrics) -> Metrics:
    """Return what a record keeps of the scalars of a client's own model, under its names there."""
    kept = {
        "accuracy": "local_accuracy",
        "received_accuracy": "received_accuracy",
        "both_wrong": "both_wrong",
    }
    return {name: metrics[known] for known, name in kept.items() if known in metrics}


def round_record(
    merged: MergedRound,
    judged: Mapping[ClientId, Metrics],
    domains: Mapping[ClientId, str],
    seconds: float,
) -> RoundRecord:
    """Return the record of a round.

    Args:
        merged: the round.
        judged: the scalars of those who judge, each of the model that it is evaluated with.
        domains: the domain of every client.
        seconds: the time that their evaluation took.
    """
    names, trained = sorted({*judged, *merged.clients}), merged.clients
    rows = ((c, _row(domains[c], judged.get(c, {}), trained.get(c, NO_CLIENT))) for c in names)
    clients = gathered(rows, len(names))
    return RoundRecord(
        round=merged.round,
        lr=merged.lr,
        participants=merged.participants,
        **_means(clients),
        clients=clients,
        warnings=not_judged(clients),
        failures=merged.failures,
        seconds=replace(merged.seconds, evaluate=merged.seconds.evaluate + seconds),
        bytes=merged.bytes,
    )


def bytes_up(reply: Reply) -> int:
    """Return how many bytes of tensors a reply sends: its weights and its reports."""
    return byte_count(reply.weights) + byte_count_of(reply.reports)


def _row(domain: str, judged: Metrics, trained: ClientRecord = NO_CLIENT) -> ClientRecord:
    return convert({**judged, **dump(trained), "domain": domain}, ClientRecord)


def domain_means(clients: Clients, values: Sequence[float]) -> Scores:
    """Return the mean of a number of each client over the clients of each domain that have it."""
    known = {client: value for client, value in zip(clients, values, strict=True) if not math.isnan(value)}
    return by_domain(known, domains_of(clients))


def _means(clients: Clients) -> dict[str, Any]:
    """Return the fields of a round that are means over its clients."""
    means = {
        name: domain_means(clients, column(clients, name))
        for name in ("accuracy", "local_accuracy", "pseudo_label_accuracy")
    }
    judged = judges(clients)
    return {
        "accuracy": RoundScores(means["accuracy"], means["local_accuracy"]),
        "pseudo_label_accuracy": means["pseudo_label_accuracy"],
        "signals": {name: fmean(compress(column(clients, name), judged)) for name in SIGNALS if any(judged)},
    }


def doubtful_source(clients: Clients) -> list[str]:
    """Warn where the source model predicts next to one class only: it may be the wrong model."""
    poor = [client for client, row in clients.items() if row.effective_classes < 1.5 and telling(row)]
    return (
        [f"the source model predicts nearly one class only for {some(sorted(poor), _NAMED)}"] if poor else []
    )


def unlike_images(clients: Clients) -> list[str]:
    """Warn where images are unlike those that the source model knows: its answers may mean nothing there."""
    far = {c: row.unlikeness for c, row in clients.items() if row.unlikeness > 1 and row.images >= COMPARABLE}
    if not far:
        return []
    farthest = max(far, key=far.__getitem__)
    return [
        f"the images of {some(sorted(far), _NAMED)} are unlike those that the source model was trained on "
        f"({farthest} {far[farthest]:.1f} times as far as is usual at most): look at them, check some answers"
    ]


def left_out(empty: Sequence[ClientId]) -> list[str]:
    """Name the clients that have nothing to train on."""
    return [f"without an image and left out: {some(sorted(empty), _NAMED)}"] if empty else []


def not_judged(clients: Clients) -> list[str]:
    """Name the clients that could not be reached to evaluate the model."""
    silent = [client for client, row in clients.items() if not math.isnan(row.stale)]
    return [f"numbers of an earlier round stand for {some(silent, _NAMED)}: not reached"] if silent else []


def telling(row: ClientRecord) -> bool:
    """Whether a client has enough images that the classes of its answers say something."""
    return row.images >= _FEWEST_IMAGES


def collapsed(record: RoundRecord, first: RoundRecord) -> list[ClientId]:
    """Return the clients whose predictions fell to less than half as many classes as the source model's."""
    before = first.clients
    return [
        client
        for client, row in record.clients.items()
        if client in before
        and row.effective_classes < _COLLAPSED * before[client].effective_classes
        and telling(row)
    ]


def selected_round(records: Sequence[RoundRecord], signal: str) -> int:
    """Return the round with the best label-free signal; the later of equals.

    Rounds that collapsed, or that nobody judged, are passed over.
    """
    if signal == "last":
        return records[-1].round
    sign = SIGNALS[signal].sign
    healthy = [record for record in records if not collapsed(record, records[0])]

    def quality(record: RoundRecord) -> tuple[float, int]:
        known = signal in record.signals
        return sign * _comparable(record, records[0], signal) if known else -math.inf, record.round

    return max(healthy, key=quality).round


def _comparable(record: RoundRecord, first: RoundRecord, signal: str) -> float:
    """Return a round's signal; where some clients judged only, by its change since round 0 at these.

    Clients differ more from one another than rounds do, and other clients judged the other rounds.
    """
    judged = list(compress(record.clients, judges(record.clients)))
    if len(judged) >= len(first.clients):
        return record.signals[signal]
    before = dict(zip(first.clients, column(first.clients, signal), strict=True))
    known = [before[client] for client in judged if client in before]
    return record.signals[signal] + (first.signals[signal] - fmean(known) if known else 0.0)


def in_short(record: RoundRecord) -> str:
    """Return the result of a round in a few words."""
    if not record.judged:
        return "not judged"
    average = record.accuracy.server.average
    entropy = record.signals.get("entropy", math.nan)
    return f"entropy {entropy:.2f}" if math.isnan(average) else f"average {average:.1f} %"


def void_rounds(rounds: Sequence[MergedRound | RoundRecord]) -> int:
    """Return how many rounds at the end had no usable reply."""
    count = 0
    for one in reversed(rounds[1:]):
        if any(row.epochs is not None for row in one.clients.values()):
            break
        count += 1
    return count


@dataclass(frozen=True)
class Outcome:
    """The accuracies that can be reported, and the rounds that the last two of them are of."""

    accuracy: Accuracies
    selected_round: int | None
    best_round: int | None


def outcome_of(records: Sequence[RoundRecord]) -> Outcome:
    """Return source-only, last, selected and best accuracy; the best round is the first of equals."""
    server = {record.round: record.accuracy.server for record in records}
    averages = {index: scores.average for index, scores in server.items()}
    known = [index for index, average in averages.items() if math.isfinite(average)]
    best = max(known, key=averages.__getitem__) if known else None
    selected = records[-1].selected_round
    accuracy = Accuracies(
        source_only=server.get(0, NO_SCORES),
        last=latest_judged(records).accuracy.server,
        selected=NO_SCORES if selected is None else server.get(selected, NO_SCORES),
        best=NO_SCORES if best is None else server[best],
    )
    return Outcome(accuracy, selected, best)


def latest_judged(records: Sequence[RoundRecord]) -> RoundRecord:
    """Return the last round that anybody judged; of a run that goes on it may not be the last one."""
    return next((record for record in reversed(records) if record.judged), records[-1])


def own_models(records: Sequence[RoundRecord]) -> Scores:
    """Return the accuracy of each client's own model of its last participation, by domain."""
    latest: dict[ClientId, float] = {}
    where: dict[ClientId, str] = {}
    for record in records:
        where |= domains_of(record.clients)
        known = zip(record.clients, column(record.clients, "local_accuracy"), strict=True)
        latest |= {client: accuracy for client, accuracy in known if not math.isnan(accuracy)}
    return by_domain(latest, where)


def summarise(records: Sequence[RoundRecord], pretrain_seconds: float, **facts: Any) -> RunSummary:
    """Return the summary of a finished run, with facts about it that its rounds do not tell."""
    outcome, last = outcome_of(records), records[-1]
    labelled = outcome.accuracy.labelled
    pseudo = latest_judged(records).pseudo_label_accuracy.average
    return RunSummary(
        rounds=last.round,
        accuracy=outcome.accuracy,
        client_models=ClientModels(own_models(records)),
        selected_round=outcome.selected_round,
        best_round=outcome.best_round,
        pseudo_label_accuracy=None if math.isnan(pseudo) else pseudo,
        worse_domains=worse_domains(outcome.accuracy) if labelled else None,
        seconds=replace(total_seconds(records), pretrain=pretrain_seconds),
        warnings=[text for record in records for text in record.warnings],
        **facts,
    )


def total_seconds(records: Sequence[RoundRecord]) -> Seconds:
    """Return the seconds spent in adaptation and in evaluation."""
    spent = [record.seconds for record in records]
    return Seconds(adapt=sum(one.adapt for one in spent), evaluate=sum(one.evaluate for one in spent))


def worse_domains(accuracy: Accuracies) -> list[str]:
    """Return the domains that lost, as shown: a change that disappears when rounded to 0.1 points is none."""
    before, after = accuracy.source_only, accuracy.last
    return [name for name in before.domains if round(after.of(name) - before.of(name), 1) < 0]
