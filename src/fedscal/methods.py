"""The table of methods: a method is a value, regularizers x server rule; the adaptation is chosen apart.

A new method is one row here. A term or rule declares its own hyper-parameters (``options.option``),
and they become keys of the command line by being named in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedscal.errors import UsageError, nearest
from fedscal.objective.alignment import Alignment
from fedscal.objective.contrastive import Contrastive
from fedscal.objective.proximal import Proximal
from fedscal.objective.shot import Shot
from fedscal.objective.term import Objective, Term
from fedscal.options import Option, Value, construct, options_of
from fedscal.server.rule import Average, Frozen, Isolated, ServerRule


@dataclass(frozen=True)
class Method:
    """One row: what is added to the local adaptation, and what the server does."""

    title: str
    rule: type[ServerRule]
    regularizers: tuple[type[Term], ...]
    idea: str
    reference: str
    adaptation: str = "shot"
    """The local adaptation that is meant when none is named."""


_PAPER = "Yashwanth et al., FedSCAl, WACV 2026"

METHODS: Mapping[str, Method] = {
    "source-only": Method("Source only", Frozen, (), "the source model as it is", _PAPER),
    "loa": Method("LoA", Isolated, (), "each client adapts alone", _PAPER),
    "fedloa": Method("FedLoA", Average, (), "clients adapt, the server averages", _PAPER),
    "fedprox": Method(
        "FedProx", Average, (Proximal,), "stay near the server's weights", "Li et al., MLSys 2020"
    ),
    "fedmoon": Method(
        "FedMOON",
        Average,
        (Contrastive,),
        "features near the server's, away from the old",
        "Li et al., CVPR 2021",
    ),
    "fedscal": Method(
        "FedSCAl", Average, (Alignment,), "align predictions with the server's and one's own", _PAPER
    ),
}

ADAPTATIONS: Mapping[str, type[Term]] = {"shot": Shot}


def method(name: str) -> Method:
    """Return the method of that name, or say which one is nearest."""
    if name not in METHODS:
        raise UsageError(f"method={name}: no such method{nearest(name, METHODS)}")
    return METHODS[name]


def build_objective(name: str, adaptation: str, values: Mapping[str, Value]) -> Objective:
    """Return the client objective of a method: the adaptation first, then the regularizers."""
    if adaptation not in ADAPTATIONS:
        raise UsageError(f"adaptation={adaptation}: no such adaptation{nearest(adaptation, ADAPTATIONS)}")
    parts = (ADAPTATIONS[adaptation], *method(name).regularizers)
    return Objective(tuple(construct(part, values) for part in parts))


def build_rule(name: str, values: Mapping[str, Value]) -> ServerRule:
    """Return the server rule of a method."""
    return construct(method(name).rule, values)


def parts_of(name: str, adaptation: str) -> tuple[type, ...]:
    """Return the classes that a method is made of."""
    row = method(name)
    return (ADAPTATIONS[adaptation], *row.regularizers, row.rule)


def hyperparameters() -> dict[str, list[tuple[type, Option]]]:
    """Return every hyper-parameter of every part, with the parts that declare it.

    The same name may have another default in another part: mu is 0.01 in FedProx and 1 in FedMOON.
    """
    parts: list[type] = list(ADAPTATIONS.values())
    for row in METHODS.values():
        parts += [*row.regularizers, row.rule]
    found: dict[str, list[tuple[type, Option]]] = {}
    for part in dict.fromkeys(parts):
        for name, declared in options_of(part).items():
            found.setdefault(name, []).append((part, declared))
    return found
