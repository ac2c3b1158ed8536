"""Every reply is looked at before it is used: one bad client must not spoil or stop a round."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fedscal.types import ClientId, Failure, Groups, Reply, Weights
from fedscal.weights import first_not_finite, flatten


def fault(reply: Reply, round_: int, model: Weights, reports: Groups) -> str | None:
    """Say what is wrong with a reply to ``round_``, if anything.

    Its weights must look like ``model`` and its reports like ``reports``: same names, shapes and types.
    """
    if reply.round != round_:
        return f"answers round {reply.round}, not {round_}"
    if type(reply.examples) is not int or not 0 < reply.examples < 2**40:
        return f"claims {reply.examples!r} examples"
    if not all(
        map(math.isfinite, [reply.drift, reply.seconds, *(v for e in reply.epochs for v in e.values())])
    ):
        return "a number in its record is NaN or infinity"
    return _unlike(reply.weights, model) or _unlike(flatten(reply.reports), flatten(reports))


def _unlike(tensors: Weights, example: Weights) -> str | None:
    if tensors.keys() != example.keys():
        odd = sorted(tensors.keys() ^ example.keys())[0]
        return f"its tensors have other names: '{odd}' is missing or unknown"
    for name, tensor in tensors.items():
        if tensor.shape != example[name].shape or tensor.dtype != example[name].dtype:
            return f"tensor '{name}' is {tensor.dtype} {tuple(tensor.shape)}, not as it must be"
    broken = first_not_finite(tensors)
    return f"tensor '{broken}' holds NaN or infinity" if broken else None


def screen(
    answers: Iterable[Reply | Failure],
    asked: frozenset[ClientId],
    round_: int,
    model: Weights,
    reports: Groups,
) -> tuple[list[Reply], list[Failure]]:
    """Part usable replies, sorted by client, from failures; strangers and second answers fail too."""
    replies: dict[ClientId, Reply] = {}
    failures: list[Failure] = []
    heard: set[ClientId] = set()
    for answer in answers:
        reason = answer.reason if isinstance(answer, Failure) else fault(answer, round_, model, reports)
        if answer.client not in asked or answer.client in heard:
            reason = "was not asked, or answered twice"
        heard.add(answer.client)
        if reason is not None:
            failures.append(Failure(answer.client, reason))
        elif isinstance(answer, Reply):
            replies[answer.client] = answer
    silent = asked - heard
    failures += [Failure(client, "did not answer") for client in silent]
    return [replies[client] for client in sorted(replies)], sorted(failures, key=lambda f: f.client)
