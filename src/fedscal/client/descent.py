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
    _momenta: dict[int, Tensor] = field(default_factory=dict)

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
        moving = [place for place, (parameter, _) in enumerate(self.rates) if parameter.grad is not None]
        if moving:
            with torch.no_grad():
                self._move(moving, decay)

    def _move(self, moving: Sequence[int], decay: float) -> None:
        parameters = [self.rates[place][0] for place in moving]
        g = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(g)))
        torch._foreach_mul_(g, (self.clip / (norm + _LEAST_NORM)).clamp(max=1.0))
        torch._foreach_add_(g, parameters, alpha=self.decay)
        # In place, as all of it: a gradient is of no use after its step, and a large model fits but so often.
        torch._foreach_add_(g, self._gathered(moving, g), alpha=self.momentum)
        rates = [self.rates[place][1] for place in moving]
        for rate in set(rates):
            at = [n for n, own in enumerate(rates) if own == rate]
            torch._foreach_add_([parameters[n] for n in at], [g[n] for n in at], alpha=-rate * decay)

    def _gathered(self, moving: Sequence[int], g: Sequence[Tensor]) -> list[Tensor]:
        """Return the momenta with these gradients in them."""
        gradients = dict(zip(moving, g, strict=True))
        known = [place for place in moving if place in self._momenta]
        if known:
            momenta = [self._momenta[place] for place in known]
            torch._foreach_mul_(momenta, self.momentum)
            torch._foreach_add_(momenta, [gradients[place] for place in known])
        self._momenta.update(
            {place: gradients[place].clone() for place in moving if place not in self._momenta}
        )
        return [self._momenta[place] for place in moving]
