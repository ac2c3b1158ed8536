"""A batch with lazy, cached forward passes: what no term uses is never computed.

In train mode every pass of the client's model moves the statistics of BatchNorm, so the order of the passes
decides bits. It is: the weak view, then what the terms use beyond it, in the order of the terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from fedscal.core.lazy import torch
from fedscal.core.types import Prediction

if TYPE_CHECKING:
    from torch import Tensor, nn

Forward: TypeAlias = "Callable[[Tensor], Prediction]"
T = TypeVar("T")


@dataclass(frozen=True)
class Models:
    """The models that terms can use during one round.

    Attributes:
        current: the model in training.
        server: the model as received, without gradient; None if no term needs it.
        previous: the client's model of its last participation; None at the first one.
        server_once: the received model's predictions on all of the client's images.
        pairs: returns every trainable parameter beside its value as received.
        joint: whether weak and strong views share one forward pass.
        others: predictions of further models of the package on all of the client's images, by name.
        draws: the random stream of the terms.
    """

    current: Forward
    server: Forward | None
    previous: Forward | None
    server_once: Prediction | None
    pairs: Callable[[], Sequence[tuple[nn.Parameter, Tensor]]]
    joint: bool
    others: Mapping[str, Prediction] = field(default_factory=dict)
    draws: torch.Generator = field(default_factory=lambda: torch.Generator())


@dataclass(frozen=True)
class Mixed:
    """Mixup of a batch: image i is ``share`` of itself and the rest of image ``partners[i]``."""

    prediction: Prediction
    partners: Tensor
    share: Tensor


class Step:
    """One batch: ``indices`` are its rows in the client's data, views are drawn when first used."""

    def __init__(
        self, indices: Tensor, weak: Callable[[], Tensor], strong: Callable[[], Tensor], models: Models
    ) -> None:
        self.indices = indices
        self.models = models
        self._weak = weak
        self._strong = strong

    @cached_property
    def weak_images(self) -> Tensor:
        """The weak view A_w(x)."""
        return self._weak()

    @cached_property
    def strong_images(self) -> Tensor:
        """The strong view A_s(x)."""
        return self._strong()

    @cached_property
    def _both(self) -> tuple[Prediction, Prediction]:
        count = len(self.indices)
        both = self.models.current(torch.cat([self.weak_images, self.strong_images]))
        return (
            Prediction(both.features[:count], both.logits[:count]),
            Prediction(both.features[count:], both.logits[count:]),
        )

    @cached_property
    def weak(self) -> Prediction:
        """f_k(A_w(x)): the client's model on the weak view, with gradient."""
        return self._both[0] if self.models.joint else self.models.current(self.weak_images)

    @cached_property
    def strong(self) -> Prediction:
        """f_k(A_s(x)): the client's model on the strong view, with gradient."""
        if self.models.joint:
            return self._both[1]
        _ = self.weak  # goes first, see above
        return self.models.current(self.strong_images)

    @cached_property
    def server(self) -> Prediction:
        """f(A_w(x)): the received server model on this batch's weak view, without gradient."""
        model = _required(self.models.server, "Models.server", "Need.SERVER")
        with torch.no_grad():
            return model(self.weak_images)

    @cached_property
    def server_once(self) -> Prediction:
        """The received server model's predictions, made once per round, for this batch's images."""
        return _required(self.models.server_once, "Models.server_once", "Need.SERVER_ONCE")[self.indices]

    @cached_property
    def previous(self) -> Prediction | None:
        """This client's model of its last participation on the weak view; None at the first one."""
        if self.models.previous is None:
            return None
        with torch.no_grad():
            return self.models.previous(self.weak_images)

    @cached_property
    def mixed(self) -> Mixed:
        """f_k(s A_w(x_i) + (1 - s) A_w(x_j)) with gradient: random partners j, one s ~ U(1/2, 1) a batch."""
        _ = self.weak  # goes first, see above
        partners = torch.randperm(len(self.indices), generator=self.models.draws)
        share = 0.5 + 0.5 * torch.rand((), generator=self.models.draws)
        images = torch.lerp(self.weak_images[partners], self.weak_images, share.to(self.weak_images.device))
        return Mixed(self.models.current(images), partners, share)

    def by(self, name: str) -> Prediction:
        """Return the predictions of the package's model of that name, made once per round, for this batch."""
        need = f"Need.{name.upper()}_ONCE"
        return _required(self.models.others.get(name), f"Models.others['{name}']", need)[self.indices]

    @property
    def pairs(self) -> Sequence[tuple[nn.Parameter, Tensor]]:
        """Every trainable parameter w beside its value w^r as received from the server."""
        return self.models.pairs()


def _required(given: T | None, field: str, need: str) -> T:
    if given is None:
        raise LookupError(f"{field} is not there; a term that uses it must declare {need}")
    return given
