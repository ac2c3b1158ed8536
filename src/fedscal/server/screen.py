"""Every reply is looked at before it is used: one bad client must not spoil or stop a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from fedscal.core.errors import shown
from fedscal.core.fields import Field, just, numbers, printable, real, record, several, whole
from fedscal.core.types import ClientId, Failure, Groups, Package, Reply
from fedscal.core.weights import first_not_finite, flatten, unlike
from fedscal.server import statistics

MOST = 3.5e38
"""The largest number that a record may hold: a little more than float32, the type of a loss."""
IMAGES = whole(1, 10**9)
"""How many images a client may have."""
_SECONDS = real(0, 1e8)
_TENSORS = ("weights", "reports")


def training_record(client: ClientId, round_: int, examples: Field, epochs: Field) -> dict[str, Field]:
    """Return what the scalars of a client's reply to a round must be."""
    return {
        "client": just(client),
        "round": just(round_),
        "examples": examples,
        "epochs": epochs,
        "seconds": _SECONDS,
        "drift": real(0, MOST),
    }


def fault(reply: Reply, package: Package, reports: Groups) -> str | None:
    """Say what is wrong with a reply to a package, if anything.

    Its weights must look like the package's models and its reports like ``reports``: same names, shapes and
    types. Its statistics must be such as a training from these models can leave.
    """
    scalars = {f.name: getattr(reply, f.name) for f in fields(reply) if f.name not in _TENSORS}
    count = len(reply.epochs) if isinstance(reply.epochs, list | tuple) else 0
    epochs = several(numbers(real(-MOST, MOST)), count)
    wrong = record(training_record(reply.client, package.round, IMAGES, epochs))(scalars)
    if wrong:
        return f"its record{wrong}"
    sent = list(package.models.values())
    told = flatten(reply.reports)
    return (
        unlike(reply.weights, sent[0])
        or unlike(told, flatten(reports))
        or _not_finite({**reply.weights, **told})
        or statistics.impossible(reply.weights, sent, reply.examples, len(reply.epochs))
    )


def _not_finite(tensors: Mapping[str, Any]) -> str | None:
    broken = first_not_finite(tensors)
    return f"tensor '{broken}' holds NaN or infinity" if broken else None


def screen(
    answers: Iterable[Reply | Failure],
    packages: Mapping[ClientId, Package],
    reports: Callable[[Groups], Groups],
) -> tuple[list[Reply], list[Failure]]:
    """Part usable replies, sorted by client, from failures; strangers and second answers fail too.

    Args:
        answers: what the clients said, in any order.
        packages: what the clients that were asked were sent.
        reports: the reports that a reply to a package with these models must carry.
    """
    replies: dict[ClientId, Reply] = {}
    failures: list[Failure] = []
    heard: set[ClientId] = set()
    for answer in answers:
        client = _name(answer)
        package = None if client in heard else packages.get(client)
        reason = _reason(answer, package, reports)
        heard.add(client)
        if reason is None and isinstance(answer, Reply):
            replies[client] = answer
        else:
            failures.append(Failure(client, printable(reason or "")))
    failures += [Failure(client, "did not answer") for client in packages.keys() - heard]
    return [replies[client] for client in sorted(replies)], sorted(failures, key=lambda f: f.client)


def _name(answer: object) -> str:
    name = getattr(answer, "client", None)
    return name if isinstance(name, str) else shown(name)


def _reason(
    answer: Reply | Failure, package: Package | None, reports: Callable[[Groups], Groups]
) -> str | None:
    """Say why an answer cannot be used, if it cannot; that it cannot even be looked at is a reason too."""
    if package is None:
        return "was not asked, or answered twice"
    if isinstance(answer, Failure):
        return str(answer.reason)
    try:
        return fault(answer, package, reports(package.models))
    except Exception as error:  # one answer's exception, whatever it is, is that answer's failure
        return f"its reply cannot be looked at ({type(error).__name__}: {error})"
