"""The optimiser of clients and of source training: SGD with Nesterov momentum on a clipped gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedscal.core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_NORM = 1e-6
"""Added to the norm that a gradient is divided by."""


@dataclass(frozen=True)
class Descent:
    r"""g = min(1, c / ||grad||) grad + d w,  m <- mu m + g,  w <- w - lr (g + mu m); the first m is g.

    These are the steps of ``clip_grad_norm_`` and ``torch.optim.SGD``, to the bit. To set the latter up costs
    a client with few images more than its steps, and torch imports a compiler with it, 75 MB; here is nothing
    but the equation, on all parameters at once.

    Attributes:
        rates: every parameter and its learning rate, in the order of the network.
        clip: c, the largest norm of all gradients together.
        decay: d.
        momentum: mu.
    """

    rates: Sequence[tuple[Tensor, float]]
    clip: float
    decay: float
    momentum: float
    _momenta: dict[Tensor, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, groups: Iterable[Mapping[str, Any]], clip: float, decay: float, momentum: float) -> Descent:
        """Start with the parameter groups of a network, as torch's optimisers take them."""
        rates = [(parameter, group["lr"]) for group in groups for parameter in group["params"]]
        return cls(rates, clip, decay, momentum)

    def step(self, loss: Tensor, decay: float = 1.0) -> None:
        """Move the parameters that a loss depends on against its gradient, at rates times ``decay``."""
        for parameter, _ in self.rates:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {parameter: parameter.grad for parameter, _ in self.rates if parameter.grad is not None}
        if gradients:
            with torch.no_grad():
                self._move(gradients, decay)

    def _move(self, gradients: dict[Tensor, Tensor], decay: float) -> None:
        parameters, g = list(gradients), list(gradients.values())
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(g)))
        torch._foreach_mul_(g, (self.clip / (norm + _LEAST_NORM)).clamp(max=1.0))
        torch._foreach_add_(g, parameters, alpha=self.decay)
        self._gather_momentum(gradients)
        # In place, as all of it: a gradient is of no use after its step, and a large model fits but so often.
        torch._foreach_add_(g, [self._momenta[p] for p in parameters], alpha=self.momentum)
        rates = dict(self.rates)
        for rate in {rates[p] for p in parameters}:
            moving = [p for p in parameters if rates[p] == rate]
            torch._foreach_add_(moving, [gradients[p] for p in moving], alpha=-rate * decay)

    def _gather_momentum(self, gradients: dict[Tensor, Tensor]) -> None:
        known = [parameter for parameter in gradients if parameter in self._momenta]
        if known:
            momenta = [self._momenta[parameter] for parameter in known]
            torch._foreach_mul_(momenta, self.momentum)
            torch._foreach_add_(momenta, [gradients[parameter] for parameter in known])
        self._momenta.update({p: g.clone() for p, g in gradients.items() if p not in self._momenta})
