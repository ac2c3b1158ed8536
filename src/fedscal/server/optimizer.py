"""The server's optimiser: how its model moves towards the aggregate of a round.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution. 2019 (momentum).
Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization. ICLR 2021
(adam, yogi: Algorithm 2, without bias correction, the second moment starting at epsilon^2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedscal.core.errors import UsageError
from fedscal.core.layout import is_statistic
from fedscal.core.lazy import torch
from fedscal.core.options import option
from fedscal.core.types import Weights

if TYPE_CHECKING:
    from torch import Tensor

_FIRST, _SECOND = "first/", "second/"
"""The moments of a parameter are kept under its name after one of these, a velocity under its name."""
_USUAL_RATES = {"momentum": 1.0, "adam": 0.01, "yogi": 0.01}


@dataclass(frozen=True)
class ServerOptimizer:
    r"""Takes Delta = aggregate - w as the step to go; a, b: beta1, beta2; e: epsilon.

    none:      w <- w + Delta, the aggregate itself
    momentum:  m <- server_momentum m + Delta,  w <- w + lr m
    adam:      m <- a m + (1 - a) Delta,  v <- b v + (1 - b) Delta^2,  w <- w + lr m / (sqrt(v) + e)
    yogi:      as adam, with v <- v - (1 - b) Delta^2 sign(v - Delta^2)

    BatchNorm's statistics and counters take the aggregate as it is. All sums run in float64.
    """

    server_optimizer: Literal["none", "momentum", "adam", "yogi"] = option(
        "none", "the server's optimiser; none: it takes the aggregate as it is", later=True
    )
    server_momentum: float = option(
        0.0,
        "share of the server's last step that is taken again; above 0 it means momentum",
        low=0,
        high=1,
    )
    server_lr: float = option(
        0.0,
        "learning rate of the server's optimiser; 0: 1 for momentum, else 0.01",
        low=0,
        later=True,
    )
    server_beta1: float = option(
        0.9, "decay of the first moment; momentum's share if server_momentum is 0", low=0, high=1, later=True
    )
    server_beta2: float = option(0.99, "decay of the second moment", low=0, high=1, later=True)
    server_epsilon: float = option(1e-3, "added to the root of the second moment", above=0, later=True)

    def __post_init__(self) -> None:
        if self.server_momentum and self.server_optimizer in ("adam", "yogi"):
            raise UsageError(
                f"server_momentum={self.server_momentum:g}: server_optimizer={self.server_optimizer} has "
                "server_beta1 in its place; leave one of them away."
            )

    @property
    def kind(self) -> str:
        """The optimiser in force."""
        return "momentum" if self.server_momentum else self.server_optimizer

    def step(
        self, server: Weights, aggregate: Weights, moments: Weights
    ) -> tuple[Weights, dict[str, Tensor]]:
        """Return the server's next model and the next moments, which are empty before the first round."""
        if self.kind == "none":
            return aggregate, {}
        rate = self.server_lr or _USUAL_RATES[self.kind]
        moved = dict(aggregate)
        kept: dict[str, Tensor] = {}
        for name, tensor in aggregate.items():
            if not tensor.is_floating_point() or is_statistic(name):
                continue
            old = server[name].double()
            direction, new = self._direction(name, tensor.double() - old, moments)
            moved[name] = (old + rate * direction).to(tensor.dtype)
            kept |= new
        return moved, kept

    def _direction(self, name: str, delta: Tensor, moments: Weights) -> tuple[Tensor, dict[str, Tensor]]:
        """Return where a parameter goes, and its new moments."""
        if self.kind == "momentum":
            share = self.server_momentum or self.server_beta1
            velocity = delta + share * moments[name] if name in moments else delta
            return velocity, {name: velocity}
        first = (1 - self.server_beta1) * delta
        if _FIRST + name in moments:
            first = self.server_beta1 * moments[_FIRST + name] + first
        start = torch.full_like(delta, self.server_epsilon**2)
        second = self._second_moment(moments.get(_SECOND + name, start), delta.square())
        return first / (second.sqrt() + self.server_epsilon), {_FIRST + name: first, _SECOND + name: second}

    def _second_moment(self, last: Tensor, square: Tensor) -> Tensor:
        if self.kind == "yogi":
            return last - (1 - self.server_beta2) * square * torch.sign(last - square)
        return self.server_beta2 * last + (1 - self.server_beta2) * square
