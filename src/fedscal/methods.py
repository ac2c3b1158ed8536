"""The table of methods: a method is a value, regularizers x server rule; the adaptation is a separate choice.

A new method is one row here. A term or rule declares its own hyper-parameters (``options.option``),
and they become keys of the command line by being named in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedscal.client.start import Blend, Received, Start
from fedscal.client.style import style
from fedscal.client.term import Adaptation, Objective, Term
from fedscal.client.terms.alignment import Alignment
from fedscal.client.terms.bmd import Bmd
from fedscal.client.terms.contrastive import Contrastive
from fedscal.client.terms.distillation import Distillation
from fedscal.client.terms.local_classifier import LocalClassifier
from fedscal.client.terms.none import NoAdaptation
from fedscal.client.terms.proximal import Proximal
from fedscal.client.terms.self_training import SelfTraining
from fedscal.client.terms.shot import Shot
from fedscal.client.terms.two_phase import TwoPhase
from fedscal.client.terms.ucon import Ucon
from fedscal.core.errors import UsageError, nearest, shown
from fedscal.core.options import Option, Value, construct, options_of
from fedscal.core.types import Profile
from fedscal.server.rule import Frozen, Isolated, ServerRule
from fedscal.server.rules.average import Average
from fedscal.server.rules.dual_adapt import DualAdapt
from fedscal.server.rules.style_clusters import StyleClusters
from fedscal.server.rules.weighted_clusters import WeightedClusters


@dataclass(frozen=True)
class Method:
    """One row: what is added to the local adaptation, and what the server does.

    Attributes:
        title: the name in tables.
        rule: the server's part.
        regularizers: the terms beside the local adaptation.
        idea: what it does, in a few words.
        reference: where it comes from.
        adaptation: the local adaptation that it is run with unless another is chosen.
        start: how a client turns the received models into the one that it trains.
        trains_head: whether a client trains the classifier too.
        profile: computes what a client reports of its images once, before the first round.
        caveat: what a reader of its numbers must know: whether it is a reconstruction.
        defaults: values of the run's keys that it was made for.
        frozen_defaults: those that differ where the trunk is frozen.
        reveals: what leaves a client beside its weights, its number of images and training scalars.
    """

    title: str
    rule: type[ServerRule]
    regularizers: tuple[type[Term], ...]
    idea: str
    reference: str
    adaptation: str = "shot"
    start: type[Start] = Received
    trains_head: bool = False
    profile: Profile | None = None
    caveat: str = ""
    reveals: str = ""
    defaults: Mapping[str, Value] = field(default_factory=dict)
    frozen_defaults: Mapping[str, Value] = field(default_factory=dict)


_PAPER = "Yashwanth et al., FedSCAl, WACV 2026"

METHODS: dict[str, Method] = {
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
    "fedwca": Method(
        "FedWCA",
        WeightedClusters,
        (TwoPhase,),
        "one model a cluster of clients, blended by each client",
        "Mori et al., WACV 2025",
        start=Blend,
        caveat="reconstruction",
        reveals="the share of each cluster model in its blend",
    ),
    "ladd": Method(
        "LADD",
        StyleClusters,
        (Distillation,),
        "source training in the clients' styles, clusters by style, self-training, distillation",
        "Shenaj et al., WACV 2023",
        adaptation="self-training",
        trains_head=True,
        profile=style,
        caveat="published code read for classification",
        reveals="its style, once, before source training: the mean low-frequency amplitude of its images",
        defaults={"pretrain_styles": "clients", "local_epochs": 1},
    ),
    "dualadapt": Method(
        "DualAdapt",
        DualAdapt,
        (LocalClassifier,),
        "the server's classifier agrees with the clients' own",
        "Yao et al., WACV 2022",
        adaptation="none",
        caveat="source-free reading; original uses source data",
        reveals="a classifier, and mean, variance and share of its features in every pseudo-class",
    ),
    "fedscal": Method(
        "FedSCAl", Average, (Alignment,), "align predictions with the server's and one's own", _PAPER
    ),
    "fedsite": Method(
        "FedSite",
        Average,
        (Alignment,),
        "neighbours agree, predictions align, each site with statistics of its own",
        "this project, 2026, docs/methods.md",
        adaptation="ucon",
        reveals="of its images the shares that both models answer alike and that the source model answers "
        "steadily, and the share of that model that is kept there",
        defaults={
            "statistics": "site",
            "class_shares": "site",
            "statistics_prior": 4.0,
            # What is learned from neighbours goes too far at some sites; each keeps what it needs to.
            "site_share": 0.9,
            "pretrain_views": "both",
            "pretrain_steps": 2000,
            "least_participants": 10,
            "select": "agreement",
        },
        frozen_defaults={"lambda_negative": 2.0},
    ),
}

ADAPTATIONS: dict[str, type[Adaptation]] = {
    "shot": Shot,
    "bmd": Bmd,
    "ucon": Ucon,
    "self-training": SelfTraining,
    "none": NoAdaptation,
}


def described(name: str) -> str:
    """Return a method's name, with what a reader of its numbers must know.

    >>> described("fedwca")
    'fedwca (reconstruction)'
    """
    return f"{name} ({warning})" if (warning := caveat(name)) else name


def caveat(name: str) -> str:
    """Return a warning about a method's numbers; empty if there is none, or nobody registered the method."""
    return METHODS[name].caveat if name in METHODS else ""


def method(name: str) -> Method:
    """Return the method of that name; an error names the nearest one."""
    if name not in METHODS:
        raise UsageError(f"method={shown(name)}: no such method{nearest(name, METHODS)}")
    return METHODS[name]


def build_objective(name: str, adaptation: str, values: Mapping[str, Value]) -> Objective:
    """Return the client objective of a method: the adaptation first, then the regularizers.

    An empty adaptation is refused where nothing else teaches the clients.
    """
    if adaptation not in ADAPTATIONS:
        raise UsageError(f"adaptation={adaptation}: no such adaptation{nearest(adaptation, ADAPTATIONS)}")
    row = method(name)
    parts: tuple[type[Term], ...] = (ADAPTATIONS[adaptation], *row.regularizers)
    objective = Objective(tuple(construct(part, values) for part in parts), row.start(), row.trains_head)
    if adaptation == "none" and row.rule.trains and not any(term.teaches for term in objective.active):
        raise UsageError(f"adaptation=none: {name} has nothing else that clients learn from; choose another.")
    return objective


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
    declarations: dict[str, list[tuple[type, Option]]] = {}
    for part in dict.fromkeys(parts):
        for name, declared in options_of(part).items():
            declarations.setdefault(name, []).append((part, declared))
    return declarations
