"""Every reply is checked before it is used: one bad client must not spoil or stop a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fedscal.core.errors import shown
from fedscal.core.fields import Field, just, numbers, printable, real, record, several, whole
from fedscal.core.options import option
from fedscal.core.types import ClientId, Failure, Groups, Package, Reply, Weights
from fedscal.core.weights import first_not_finite, flatten, unlike
from fedscal.server.statistics import impossible, relative_steps

MOST = 3.5e38
"""The largest number that a record may hold: a little more than float32, the type of a loss."""
IMAGES = whole(1, 10**9)
"""How many images a client may have."""
_SECONDS = real(0, 1e8)
_DRIFT = real(0, MOST)
_READINGS = numbers(real(-MOST, MOST))
_TENSORS = ("weights", "reports")


def training_record(client: ClientId, round_: int, examples: Field, epochs: Field) -> dict[str, Field]:
    """Return what the scalars of a client's reply to a round must be."""
    return {
        "client": just(client),
        "round": just(round_),
        "examples": examples,
        "epochs": epochs,
        "seconds": _SECONDS,
        "drift": _DRIFT,
    }


def fault(reply: Reply, package: Package, reports: Groups) -> str | None:
    """Return what is wrong with a reply to a package, if anything.

    Its weights must match the package's models, and its reports ``reports``, in names, shapes and
    types. Its statistics must be such as training from these models can produce.
    """
    scalars = {f.name: getattr(reply, f.name) for f in fields(reply) if f.name not in _TENSORS}
    count = len(reply.epochs) if isinstance(reply.epochs, list | tuple) else 0
    epochs = several(_READINGS, count)
    wrong = record(training_record(reply.client, package.round, IMAGES, epochs))(scalars)
    if wrong:
        return f"its record{wrong}"
    sent = list(package.models.values())
    reported = flatten(reply.reports)
    return (
        unlike(reply.weights, sent[0])
        or unlike(reported, flatten(reports))
        or _not_finite(reply.weights)
        or _not_finite(reported)
        or impossible(reply.weights, sent, reply.examples, len(reply.epochs))
    )


def _not_finite(tensors: Mapping[str, Any]) -> str | None:
    broken = first_not_finite(tensors)
    return f"tensor '{broken}' holds NaN or infinity" if broken else None


def screen(
    answers: Iterable[Reply | Failure],
    packages: Mapping[ClientId, Package],
    reports: Callable[[Groups], Groups],
    keep: Callable[[Weights], Weights] = lambda model: model,
) -> tuple[list[Reply], list[Failure]]:
    """Split answers into usable replies and failures, both sorted by client; strangers and repeats fail too.

    Args:
        answers: the clients' answers, in any order.
        packages: what each client of the round was sent.
        reports: the reports that a reply to a package with these models must carry.
        keep: keeps the tensors of a usable reply until the round is merged.
    """
    replies: dict[ClientId, Reply] = {}
    failures: list[Failure] = []
    answered: set[ClientId] = set()
    for answer in answers:
        client = _name(answer)
        package = None if client in answered else packages.get(client)
        reason = _reason(answer, package, reports)
        answered.add(client)
        if reason is None and isinstance(answer, Reply):
            kept = {name: keep(group) for name, group in answer.reports.items()}
            replies[client] = replace(answer, weights=keep(answer.weights), reports=kept)
        else:
            failures.append(Failure(client, printable(reason or "")))
    failures += [Failure(client, "did not answer") for client in packages.keys() - answered]
    return [replies[client] for client in sorted(replies)], sorted(failures, key=lambda f: f.client)


def _name(answer: object) -> str:
    name = getattr(answer, "client", None)
    return name if isinstance(name, str) else shown(name)


def _reason(
    answer: Reply | Failure, package: Package | None, reports: Callable[[Groups], Groups]
) -> str | None:
    """Return why an answer cannot be used, if it cannot; a check that raises is a reason too."""
    if package is None:
        return "was not asked, or answered twice"
    if isinstance(answer, Failure):
        return str(answer.reason)
    try:
        return fault(answer, package, reports(package.models))
    except Exception as error:  # one answer's exception, whatever it is, is that answer's failure
        return f"its reply cannot be checked ({type(error).__name__}: {error})"


@dataclass(frozen=True)
class NormLimit:
    """Drops replies that moved much farther from the server's model than the others."""

    norm_limit: float = option(
        0.0,
        "a reply that moved so many times as far as the median is dropped; 0: none",
        low=0,
        later=True,
    )

    def suspects(self, replies: Sequence[Reply], server: Weights) -> dict[ClientId, str]:
        """Return the replies over the limit, and by how much; none of fewer than three."""
        if not self.norm_limit or len(replies) < 3:
            return {}
        return {
            reply.client: f"went {step:.0f} times as far as the median client in its {name}"
            for name, steps in relative_steps([reply.weights for reply in replies], server).items()
            for reply, step in zip(replies, steps, strict=True)
            if step > self.norm_limit
        }
