"""From the clients' scalars to one line a round, and from the lines to a summary. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from fedscal.core.errors import some
from fedscal.core.types import ClientId, Metrics, Reply
from fedscal.core.weights import byte_count, flatten
from fedscal.server.rounds import Round

Line = dict[str, Any]
_AVERAGED = {"average": float, str: float}
LINE = {
    "round": int,
    "participants": [str],
    "accuracy?": {"server": _AVERAGED, str: _AVERAGED},
    "pseudo_label_accuracy?": _AVERAGED,
    "signals": {"entropy": float, "infomax": float, "snd": float},
    "clients": {str: {"domain": str, "effective_classes": float, "images": float, "local_accuracy?": float}},
    "warnings": [str],
    "failures": {str: str},
    "seconds": {"adapt": float, "evaluate": float},
    "selected_round": int,
}
"""The shape of a line as far as a run that goes on relies on it, see ``documents.misfit``."""
SIGNALS = {"entropy": -1.0, "infomax": 1.0, "snd": 1.0}
"""The label-free signals, with the sign that makes larger better."""
_NAMED = 3
_COLLAPSED = 0.5
_FEWEST_IMAGES = 20
"""Of fewer images than that, the number of predicted classes says nothing."""


def by_domain(values: Mapping[ClientId, float], domains: Mapping[ClientId, str]) -> dict[str, float]:
    """Average clients within each domain, then the domains: ``{domain: x, ..., "average": x}``."""
    groups: dict[str, list[float]] = {}
    for client in sorted(values):
        groups.setdefault(domains[client], []).append(values[client])
    means = {domain: fmean(group) for domain, group in sorted(groups.items())}
    return {**means, "average": fmean(means.values())} if means else {}


def _column(clients: Mapping[ClientId, Mapping[str, Any]], name: str) -> dict[ClientId, float]:
    return {client: row[name] for client, row in clients.items() if name in row}


def source_line(judged: Mapping[ClientId, Metrics], domains: Mapping[ClientId, str], seconds: float) -> Line:
    """Return line 0: the source model on every client, before any adaptation."""
    clients = {client: {"domain": domains[client], **metrics} for client, metrics in judged.items()}
    return {
        "round": 0,
        "participants": [],
        **_accuracies(clients, domains),
        "signals": _signals(clients),
        "clients": clients,
        "warnings": doubtful_source(clients),
        "failures": {},
        "seconds": {"adapt": 0.0, "evaluate": seconds},
        "bytes": {"down": 0, "up": 0},
    }


def round_line(
    done: Round,
    judged: Mapping[ClientId, Metrics],
    local: Mapping[ClientId, Metrics],
    domains: Mapping[ClientId, str],
    seconds: float,
) -> Line:
    """Return a round's line.

    Args:
        done: the round.
        judged: every client's scalars of the model that it is judged by.
        local: the participants' scalars of their own models.
        domains: the domain of every client.
        seconds: the time that the evaluation took.
    """
    clients: dict[ClientId, dict[str, Any]] = {c: {"domain": domains[c], **m} for c, m in judged.items()}
    for reply in done.replies:
        clients[reply.client] |= {
            "drift": reply.drift,
            "seconds": reply.seconds,
            "bytes_down": done.bytes_down[reply.client],
            "bytes_up": bytes_up(reply),
            "epochs": [dict(epoch) for epoch in reply.epochs],
        }
        if "accuracy" in local[reply.client]:
            clients[reply.client]["local_accuracy"] = local[reply.client]["accuracy"]
    return {
        "round": done.index,
        "lr": done.lr,
        "participants": list(done.participants),
        **_accuracies(clients, domains),
        "signals": _signals(clients),
        "clients": clients,
        "warnings": not_judged(judged),
        "failures": {failure.client: failure.reason for failure in done.failures},
        "seconds": {"adapt": done.seconds, "evaluate": seconds},
        "bytes": {
            "down": sum(done.bytes_down.values()),
            "up": sum(map(bytes_up, done.replies)),
        },
    }


def bytes_up(reply: Reply) -> int:
    """Return how many bytes of tensors a reply sends: its weights and its reports."""
    return byte_count(reply.weights) + byte_count(flatten(reply.reports))


def _accuracies(clients: Mapping[ClientId, Mapping[str, Any]], domains: Mapping[ClientId, str]) -> Line:
    found = {
        "server": by_domain(_column(clients, "accuracy"), domains),
        "clients": by_domain(_column(clients, "local_accuracy"), domains),
    }
    accuracy = {name: values for name, values in found.items() if values}
    pseudo = by_domain(_column(clients, "pseudo_label_accuracy"), domains)
    return ({"accuracy": accuracy} if accuracy else {}) | (
        {"pseudo_label_accuracy": pseudo} if pseudo else {}
    )


def _signals(clients: Mapping[ClientId, Mapping[str, Any]]) -> dict[str, float]:
    return {name: fmean(_column(clients, name).values()) for name in SIGNALS}


def doubtful_source(clients: Mapping[ClientId, Mapping[str, Any]]) -> list[str]:
    """Warn where the source model predicts next to one class only: it may be the wrong model."""
    poor = [client for client, row in clients.items() if row["effective_classes"] < 1.5 and _telling(row)]
    return (
        [f"the source model predicts nearly one class only for {some(sorted(poor), _NAMED)}"] if poor else []
    )


def left_out(empty: Sequence[ClientId]) -> list[str]:
    """Name the clients that have nothing to train on."""
    return [f"without an image and left out: {some(sorted(empty), _NAMED)}"] if empty else []


def not_judged(judged: Mapping[ClientId, Metrics]) -> list[str]:
    """Name the clients that could not be reached to judge the model."""
    silent = [client for client, metrics in judged.items() if "stale" in metrics]
    return [f"numbers of an earlier round stand for {some(silent, _NAMED)}: not reached"] if silent else []


def _telling(row: Mapping[str, Any]) -> bool:
    return bool(row["images"] >= _FEWEST_IMAGES)


def collapsed(line: Line, first: Line) -> list[ClientId]:
    """Return the clients whose predictions fell to less than half as many classes as the source model's."""
    before = first["clients"]
    return [
        client
        for client, row in line["clients"].items()
        if row["effective_classes"] < _COLLAPSED * before[client]["effective_classes"] and _telling(row)
    ]


def with_verdicts(line: Line, earlier: Sequence[Line], signal: str) -> Line:
    """Add the collapse warning and the label-free selected round so far."""
    fallen = collapsed(line, earlier[0]) if earlier else []
    if fallen:
        warning = (
            f"round {line['round']}: predictions collapse to few classes for {some(sorted(fallen), _NAMED)}"
        )
        line = {**line, "warnings": [*line["warnings"], warning]}
    return {**line, "selected_round": selected_round([*earlier, line], signal)}


def selected_round(lines: Sequence[Line], signal: str) -> int:
    """Return the round with the best label-free signal, collapsed rounds passed over; the later of equals."""
    if signal == "last":
        return int(lines[-1]["round"])
    sign = SIGNALS[signal]
    healthy = [line for line in lines if not collapsed(line, lines[0])]
    best = max(healthy, key=lambda line: (sign * line["signals"][signal], line["round"]))
    return int(best["round"])


def void_rounds(lines: Sequence[Line]) -> int:
    """Return how many rounds at the end had no usable reply."""
    count = 0
    for line in reversed(lines[1:]):
        if any("epochs" in row for row in line["clients"].values()):
            break
        count += 1
    return count


def latest_local(lines: Sequence[Line]) -> dict[ClientId, float]:
    """Return each client's accuracy with its own model of its last participation."""
    latest: dict[ClientId, float] = {}
    for line in lines:
        latest |= _column(line["clients"], "local_accuracy")
    return latest


def accuracy_summary(lines: Sequence[Line]) -> Line:
    """Return source-only, last, selected and best accuracy; nothing where there are no labels."""
    if "accuracy" not in lines[0]:
        return {"accuracy": {}, "selected_round": lines[-1]["selected_round"]}
    server = {line["round"]: line["accuracy"]["server"] for line in lines}
    rounds = [line["round"] for line in lines]
    best = max(rounds, key=lambda index: server[index]["average"])
    selected, last = lines[-1]["selected_round"], rounds[-1]
    domains = {client: row["domain"] for client, row in lines[0]["clients"].items()}
    source = server[0]
    return {
        "accuracy": {
            "source_only": source,
            "last": server[last],
            "selected": server[selected],
            "best": server[best],
        },
        "client_models": {"last": by_domain(latest_local(lines), domains)},
        "selected_round": selected,
        "best_round": best,
        "pseudo_label_accuracy": lines[-1].get("pseudo_label_accuracy", {}).get("average"),
        # As shown: a change that disappears when rounded to 0.1 points is none.
        "worse_domains": [d for d in source if d != "average" and round(server[last][d] - source[d], 1) < 0],
    }
