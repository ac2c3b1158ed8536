"""An empty LoA slot: for methods that bring all that a client learns from themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedscal.client.step import Step
from fedscal.client.term import Adaptation, State
from fedscal.core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class NoAdaptation(Adaptation):
    """L_LoA = 0: a client learns from the terms of its method alone."""

    name: ClassVar[str] = "none"
    title: ClassVar[str] = "no adaptation"
    null: ClassVar[bool] = True

    def loss(self, step: Step, state: State) -> tuple[Tensor, State]:
        """Return 0."""
        return torch.zeros(()), state
