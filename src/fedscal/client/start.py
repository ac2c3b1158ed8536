"""Where a client starts its round: usually from the one model that it was sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fedscal.core.types import Groups, Prediction, Weights

SERVER = "server"
"""The name of the model to start from, in a package that holds one."""


class Start(Protocol):
    """Turns the models of a package into the weights w^r that a client starts from."""

    def begin(self, models: Groups, sweep: Callable[[Weights], Prediction]) -> tuple[Weights, Weights]:
        """Return the starting weights, and what the server is told about the choice.

        Args:
            models: the package's models by name.
            sweep: makes a model's evaluation pass over the client's whole data.
        """
        ...


@dataclass(frozen=True)
class Received:
    """Start from the server's model as it came; there is nothing to tell."""

    def begin(self, models: Groups, sweep: Callable[[Weights], Prediction]) -> tuple[Weights, Weights]:
        """Return the server's model."""
        return models[SERVER], {}
