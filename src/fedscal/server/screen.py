"""Every reply is looked at before it is used: one bad client must not spoil or stop a round."""

from __future__ import annotations

from collections.abc import Iterable

from fedscal.types import ClientId, Failure, Reply, Weights
from fedscal.weights import first_not_finite


def fault(reply: Reply, round_: int, model: Weights) -> str | None:
    """Say what is wrong with a reply to ``round_``, whose weights must look like ``model``, if anything."""
    if reply.round != round_:
        return f"answers round {reply.round}, not {round_}"
    if type(reply.examples) is not int or not 0 < reply.examples < 2**40:
        return f"claims {reply.examples!r} examples"
    if reply.weights.keys() != model.keys():
        odd = sorted(reply.weights.keys() ^ model.keys())[0]
        return f"its tensors have other names: '{odd}' is missing or unknown"
    for name, tensor in reply.weights.items():
        if tensor.shape != model[name].shape or tensor.dtype != model[name].dtype:
            return f"tensor '{name}' is {tensor.dtype} {tuple(tensor.shape)}, not like the model's"
    broken = first_not_finite(reply.weights)
    return f"tensor '{broken}' holds NaN or infinity" if broken else None


def screen(
    answers: Iterable[Reply | Failure], asked: frozenset[ClientId], round_: int, model: Weights
) -> tuple[list[Reply], list[Failure]]:
    """Part usable replies, sorted by client, from failures; strangers and second answers fail too."""
    replies: dict[ClientId, Reply] = {}
    failures: list[Failure] = []
    heard: set[ClientId] = set()
    for answer in answers:
        reason = answer.reason if isinstance(answer, Failure) else fault(answer, round_, model)
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
