"""A batch with lazy, cached forward passes: what no term asks for is never computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from fedscal.core.lazy import torch
from fedscal.core.types import Prediction

if TYPE_CHECKING:
    from torch import Tensor, nn

Forward: TypeAlias = "Callable[[Tensor], Prediction]"


@dataclass(frozen=True)
class Models:
    """The models that a client can ask during one round.

    Attributes:
        current: the model in training.
        server: the model as received, without gradient; None if no term needs it.
        previous: the client's model of its last participation; None at the first one.
        server_once: the received model's predictions on all of the client's images.
        pairs: every trainable parameter beside its value as received.
        joint: whether weak and strong views share one forward pass.
        others: what further models of the package say of all of the client's images, by name.
        draws: the stream of what terms draw by chance.
    """

    current: Forward
    server: Forward | None
    previous: Forward | None
    server_once: Prediction | None
    pairs: Sequence[tuple[nn.Parameter, Tensor]]
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
        return self._both[1] if self.models.joint else self.models.current(self.strong_images)

    @cached_property
    def server(self) -> Prediction:
        """f(A_w(x)): the received server model on this batch's weak view, without gradient."""
        assert self.models.server is not None, "the term did not declare Need.SERVER"
        with torch.no_grad():
            return self.models.server(self.weak_images)

    @cached_property
    def server_once(self) -> Prediction:
        """The received server model's predictions, made once a round, for this batch's images."""
        assert self.models.server_once is not None, "the term did not declare Need.SERVER_ONCE"
        return self.models.server_once[self.indices]

    @cached_property
    def previous(self) -> Prediction | None:
        """This client's model of its last participation on the weak view; None at the first one."""
        if self.models.previous is None:
            return None
        with torch.no_grad():
            return self.models.previous(self.weak_images)

    @cached_property
    def mixed(self) -> Mixed:
        """f_k(s A_w(x_i) + (1 - s) A_w(x_j)) with gradient, j a random partner and s ~ U(1/2, 1) a batch."""
        partners = torch.randperm(len(self.indices), generator=self.models.draws)
        share = 0.5 + 0.5 * torch.rand((), generator=self.models.draws)
        images = torch.lerp(self.weak_images[partners], self.weak_images, share.to(self.weak_images.device))
        return Mixed(self.models.current(images), partners, share)

    def by(self, name: str) -> Prediction:
        """Return what the package's model of that name says of this batch's images, made once a round."""
        assert name in self.models.others, f"the term did not declare that it needs the model '{name}'"
        return self.models.others[name][self.indices]

    @property
    def pairs(self) -> Sequence[tuple[nn.Parameter, Tensor]]:
        """Every trainable parameter w beside its value w^r as received from the server."""
        return self.models.pairs
