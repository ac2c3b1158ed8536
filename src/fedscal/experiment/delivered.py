"""The models that a finished run delivers, site by site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from fedscal.core.types import ClientId, Weights
from fedscal.experiment.records import RunSummary
from fedscal.server.rule import ServerRule, ServerState


@dataclass(frozen=True)
class Delivered:
    """Which model each site goes on with: of which round, and its weights without the site's statistics.

    Attributes:
        rule: the server's part.
        state: the server's state after the last round.
        summary: the run's result, whose delivery says the rounds.
        source: the source model.
        read_selected: reads the model of the round that is chosen without labels; None of a method that
            keeps several.
    """

    rule: ServerRule
    state: ServerState
    summary: RunSummary
    source: Weights
    read_selected: Callable[[], Weights | None]

    @cached_property
    def _selected(self) -> Weights | None:
        return self.read_selected()

    def round_at(self, client: ClientId) -> int:
        """Return the round whose model a site uses; 0 is the source model.

        A method with a model for each client or cluster keeps no earlier one of them: the last it is.
        """
        last, delivery = self.summary.rounds, self.summary.delivery
        wanted = delivery.round_at(client) if delivery else last
        return wanted if wanted in (0, last) or self._selected else last

    def model_at(self, client: ClientId) -> Weights:
        """Return the model that a site uses."""
        round_ = self.round_at(client)
        if round_ == self.summary.rounds:
            return self.rule.deployed(self.state, client)
        model = self._selected if round_ else self.source
        assert model is not None, "round_at names no round whose model is gone"
        return model
