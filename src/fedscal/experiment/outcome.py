"""What a run means: before and after, which round counts, and who lost. Pure functions over a `Run`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedscal.core.lazy import np
from fedscal.experiment import metrics
from fedscal.experiment.client_table import column
from fedscal.experiment.load import Run, natural
from fedscal.experiment.metrics import Outcome
from fedscal.experiment.records import AVERAGE, NO_CLIENT, Accuracies, ClientRecord, RoundRecord, Scores

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class Change:
    """One accuracy before and after the adaptation, in percent."""

    name: str
    before: float
    after: float

    @property
    def delta(self) -> float:
        """Return the change as it is shown, so that the word and the number never contradict each other."""
        return round(self.after - self.before, 1)

    @property
    def word(self) -> str:
        """Return the change as a word: colour alone is no information for everybody."""
        if math.isnan(self.delta):
            return "unknown"
        return "better" if self.delta > 0 else "WORSE" if self.delta < 0 else "same"


@dataclass(frozen=True)
class DomainRow(Change):
    """A domain, or the average of all: the source model, and three choices of a round after it."""

    selected: float
    best: float
    own: float

    @property
    def gap(self) -> float:
        """Return how far the clients' own models are ahead of the server model."""
        return self.own - self.after


@dataclass(frozen=True)
class ClientRow(Change):
    """A client: the server model before and after, its own model, and how many classes are predicted."""

    domain: str
    own: float
    classes_before: float
    classes_after: float
    source_share: float
    rounds: int
    failures: int


@dataclass(frozen=True)
class Grid:
    """A value for each client (row) at each moment (column); NaN where there is none."""

    rows: Sequence[str]
    columns: Sequence[int]
    values: npt.NDArray[np.float64]

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to see."""
        return not bool(np.isfinite(self.values).any())


def outcome(run: Run) -> Outcome:
    """Return the reportable accuracies: from the summary, or of a run without one from its rounds."""
    if run.summary and (run.finished or not run.rounds):
        return Outcome(run.summary.accuracy, run.summary.selected_round, run.summary.best_round)
    return metrics.outcome_of(run.rounds) if run.rounds else Outcome(Accuracies(), None, None)


def domains_of(accuracy: Accuracies) -> Sequence[str]:
    """Return the domains that an accuracy is known of."""
    return sorted({*accuracy.source_only.domains, *accuracy.last.domains}, key=natural)


def domain_rows(run: Run) -> Sequence[DomainRow]:
    """Return one row a domain, and the average as the last row."""
    accuracy, own = outcome(run).accuracy, own_models(run)
    return [
        DomainRow(
            name=name,
            before=accuracy.source_only.of(name),
            after=accuracy.last.of(name),
            selected=accuracy.selected.of(name),
            best=accuracy.best.of(name),
            own=own.of(name),
        )
        for name in (*domains_of(accuracy), AVERAGE)
    ]


def own_models(run: Run) -> Scores:
    """Return how the clients' own latest models do on their own data, by domain."""
    if run.summary and run.finished:
        return run.summary.client_models.last
    return metrics.own_models(run.rounds)


def client_rows(run: Run) -> Sequence[ClientRow]:
    """Return one row a client: the source model (round 0) against the last round that the client judged."""
    if not run.rounds:
        return []
    first = run.rounds[0].clients if run.rounds[0].round == 0 else {}
    last, own = _latest_judged(run), _latest(run, "local_accuracy")
    rounds = Counter(client for line in run.rounds for client in line.participants)
    lost = Counter(client for line in run.rounds for client in line.failures)
    rows = []
    for client, domain in run.clients.items():
        source, now = first.get(client, NO_CLIENT), last.get(client, NO_CLIENT)
        row = ClientRow(
            name=client,
            before=source.accuracy,
            after=now.accuracy,
            domain=domain,
            own=own.get(client, math.nan),
            classes_before=source.effective_classes,
            classes_after=now.effective_classes,
            source_share=100 * now.source_share,
            rounds=rounds[client],
            failures=lost[client],
        )
        rows.append(row)
    return rows


def _latest_judged(run: Run) -> Mapping[str, ClientRecord]:
    """Return what each client judged last: in the last round, as a rule, and that is looked at first."""
    found: dict[str, ClientRecord] = {}
    for line in reversed(run.rounds):
        found = {**line.judges, **found}
        if len(found) >= len(run.clients):
            break
    return found


def _latest(run: Run, name: str) -> Mapping[str, float]:
    """Return the latest known number of each client: not everybody takes part in every round."""
    pairs = (zip(line.clients, column(line.clients, name), strict=True) for line in run.rounds)
    return {client: value for pair in pairs for client, value in pair if math.isfinite(value)}


def series(run: Run, take: Callable[[RoundRecord], Mapping[str, float]]) -> Mapping[str, Sequence[float]]:
    """Return named curves, one value a round: domains first, the average last."""
    tables = [take(line) for line in run.rounds]
    names = sorted({name for values in tables for name in values}, key=lambda n: (n == AVERAGE, natural(n)))
    return {name: [values.get(name, math.nan) for values in tables] for name in names}


def round_grid(run: Run, take: Callable[[ClientRecord], float]) -> Grid:
    """Return a client's value in each round."""
    rows = list(run.clients)
    values = [[take(line.client(client)) for line in run.rounds] for client in rows]
    return Grid(rows, [line.round for line in run.rounds], _matrix(values, len(rows)))


def epoch_grid(run: Run, key: str) -> Grid:
    """Return a client's value in each local epoch of each round; the column carries the round's number."""
    rows = list(run.clients)
    columns: list[int] = []
    moments: list[list[float]] = []
    for line in run.rounds:
        epochs = [line.client(client).epochs or () for client in rows]
        for place in range(max(map(len, epochs), default=0)):
            columns.append(line.round)
            moments.append(
                [made[place].get(key, math.nan) if place < len(made) else math.nan for made in epochs]
            )
    return Grid(rows, columns, _matrix(moments, len(columns)).T)


def _matrix(values: Sequence[Sequence[float]], rows: int) -> npt.NDArray[np.float64]:
    return np.array(values, dtype=np.float64).reshape(rows, -1) if rows else np.empty((0, 0))


def grouped(pairs: Iterable[tuple[str, int]]) -> Mapping[str, Sequence[int]]:
    """Gather the rounds in which the same thing was said."""
    rounds: dict[str, list[int]] = {}
    for what, when in pairs:
        rounds.setdefault(what, []).append(when)
    return rounds


def warnings(run: Run) -> Mapping[str, Sequence[int]]:
    """Return each warning with its rounds; one of the summary alone has none."""
    said = [(text, line.round) for line in run.rounds for text in line.warnings]
    known = {text for text, _ in said}
    # Without its round in front the same warning is one entry, however often it was given.
    found = grouped((text.removeprefix(f"round {index}: "), index) for text, index in said)
    only_summary = (run.summary.warnings or ()) if run.summary else ()
    return {**found, **{text: () for text in only_summary if text not in known}}


def failures(run: Run) -> Mapping[str, Mapping[str, Sequence[int]]]:
    """Return by client each reason of failure with its rounds."""
    seen: dict[str, list[tuple[str, int]]] = {}
    for line in run.rounds:
        for client, reason in line.failures.items():
            seen.setdefault(client, []).append((reason, line.round))
    return {client: grouped(seen[client]) for client in sorted(seen, key=natural)}
