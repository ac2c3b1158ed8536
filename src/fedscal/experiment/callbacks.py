"""What happens in a run, for whoever wants to know: the recorder, progress bars, trackers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fedscal.core.types import ClientId, Weights

if TYPE_CHECKING:
    from fedscal.experiment.experiment import Experiment
    from fedscal.experiment.pretrain import Epoch
    from fedscal.experiment.records import MergedRound, RoundRecord, RunSummary
    from fedscal.experiment.run_directory import RunDirectory
    from fedscal.experiment.source import SourceModel
    from fedscal.server.rule import ServerState

_EVENTS = (
    "stage",
    "advance",
    "place",
    "epoch",
    "connected",
    "begin",
    "asked",
    "client",
    "merged",
    "round",
    "warn",
    "sites",
    "end",
)


class Callback:
    """Override what you need; everything else does nothing.

    Order of calls: ``stage`` and ``advance`` while the run gets ready, with ``epoch`` before each ``advance``
    of source training, and ``place`` as soon as the run is written down; ``begin``, then for every round
    ``asked``, ``client`` as answers come in, ``merged``, and ``round`` when its model is judged (round 0, the
    source model, has only the last two), then ``end``. On this machine a model is judged before the next
    round begins; over machines ``round`` comes while the next one is under way, after its ``client``s.
    ``sites`` comes before it in a run whose clients, on this machine, have statistics of their own.
    ``connected`` comes whenever a site of a federation comes or goes, and ``warn`` may come at any time. A
    resumed run repeats ``round`` for the rounds on record, without a state.

    >>> class Tracker(Callback):
    ...     def round(self, record, state):
    ...         print(record.round, record.signals)
    """

    def stage(self, name: str, total: int) -> None:
        """A stage of so many steps begins; 0: nobody knows how many."""

    def advance(self) -> None:
        """A step of the stage is done."""

    def place(self, directory: RunDirectory) -> None:
        """The run has its directory, and its spec is in it."""

    def epoch(self, done: Epoch) -> None:
        """An epoch of source training is done."""

    def connected(self, there: Sequence[ClientId], missing: Sequence[ClientId]) -> None:
        """The sites of a federation that are connected now, and those that are not."""

    def begin(self, experiment: Experiment, source: SourceModel) -> None:
        """Everything is built, checked and ready; the rounds begin."""

    def asked(self, round_: int, clients: Sequence[ClientId]) -> None:
        """A round begins: these clients are asked to train."""

    def client(self, client: ClientId) -> None:
        """A client of the present round has answered."""

    def merged(self, merged: MergedRound, state: ServerState) -> None:
        """The replies of a round are merged into a new state; its model is yet to be judged."""

    def round(self, record: RoundRecord, state: ServerState | None) -> None:
        """The model of a round is judged; ``state`` is the server's after it, None if it was on record."""

    def warn(self, text: str) -> None:
        """Something that a person should know."""

    def sites(self, statistics: Mapping[ClientId, Weights], rounds: Mapping[ClientId, int]) -> None:
        """The clients' own statistics for the models that are delivered to them, and these models' rounds."""

    def end(self, summary: RunSummary, state: ServerState) -> None:
        """All rounds are done."""


class Callbacks(Callback):
    """Several callbacks as one: each event goes to all, in their order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._all = tuple(callbacks)
        for event in _EVENTS:
            setattr(self, event, partial(self._call, event))

    def _call(self, event: str, *values: Any) -> None:
        for callback in self._all:
            getattr(callback, event)(*values)
