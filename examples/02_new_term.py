"""Add a regularizer and a server rule of your own, without touching the package.

    python examples/02_new_term.py

A term is a frozen dataclass; its options become keys of a run. A method is a row: terms x server rule. Here
both are registered from outside; a contribution puts them into src/fedscal and the row into methods.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from fedscal import METHODS, Method, RunSpec, adapt, write_comparison
from fedscal.client.step import Step
from fedscal.client.term import State, Term
from fedscal.core import weights
from fedscal.core.options import option
from fedscal.core.types import ClientId, Reply, Sweep, Weights
from fedscal.server.rule import Briefing, ServerState
from fedscal.server.rules.average import Average


@dataclass(frozen=True)
class FeatureNorm(Term):
    """nu * mean ||g(A_w(x))||^2: small features."""

    name: ClassVar[str] = "feature_norm"
    scalars: ClassVar[tuple[str, ...]] = ("norm",)
    nu: float = option(0.001, "weight of the squared feature norm", low=0, weight=True)

    def prepare(self, sweep: Sweep, state: State | None) -> State:
        """Keep the norm at the start of the epoch, to be recorded."""
        return {"norm": sweep.features.norm(dim=1).mean()}

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return the penalty on the weak view."""
        return self.nu * step.weak.features.square().sum(dim=1).mean(), state


@dataclass(frozen=True)
class RunningMean(Average):
    """An average whose running mean over the rounds is deployed: u <- (1 - a) u + a w."""

    mean_rate: float = option(0.5, "a: share of the newest model in the running mean", above=0, high=1)

    def init(self, briefing: Briefing) -> ServerState:
        """Start both from the source model."""
        return ServerState({"server": briefing.source, "mean": briefing.source})

    def merge(self, state: ServerState, replies: Sequence[Reply]) -> ServerState:
        """Average as before, then move the mean."""
        merged = super().merge(state, replies)
        both = [state.models["mean"], merged.models["server"]]
        mean = weights.mean(both, [1 - self.mean_rate, self.mean_rate])
        return replace(merged, models={**merged.models, "mean": mean})

    def deployed(self, state: ServerState, client: ClientId) -> Weights:
        """Return the running mean."""
        return state.models["mean"]


def main() -> None:
    """Run FedLoA and the new method on digits for two short rounds, and write a page that compares them."""
    METHODS["fednorm"] = Method(
        "FedNorm", RunningMean, (FeatureNorm,), "small features, running mean", "nobody yet, 2026"
    )
    # One process: a worker would be a fresh interpreter, which has not heard of the new row.
    common = {"source": "mnist", "rounds": 2, "local_epochs": 1, "pretrain_epochs": 3, "workers": 1}
    out = Path("runs") / "new-term"
    for name, keys in {"fedloa": {}, "fednorm": {"nu": 0.01}}.items():
        accuracy = adapt(RunSpec.make(method=name, **common, **keys), out / name).summary().accuracy
        before, after = accuracy.source_only.average, accuracy.last.average
        print(f"{name}: average {before:.1f} % -> {after:.1f} %")
    print(write_comparison([out / "fedloa", out / "fednorm"], out / "comparison.html"))


if __name__ == "__main__":
    main()
