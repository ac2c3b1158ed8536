"""What a run means: before and after, which round counts, and who lost. Pure functions over a `Run`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedscal.experiment.load import Run, dig, natural, number, sequence, table, whole

AVERAGE = "average"  # the schema's name for the mean over the domains
SIGNALS = ("entropy", "infomax", "snd")
Scores = Mapping[str, float]


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
    rounds: int
    failures: int


@dataclass(frozen=True)
class Outcome:
    """The accuracies of the rounds that can be reported, each by domain and with the average."""

    source_only: Scores
    last: Scores
    selected: Scores
    best: Scores
    selected_round: int | None
    best_round: int | None

    @property
    def labelled(self) -> bool:
        """Return whether any accuracy is known."""
        return any(math.isfinite(value) for value in (*self.source_only.values(), *self.last.values()))

    @property
    def domains(self) -> Sequence[str]:
        """Return the domains, without the average."""
        return sorted({*self.source_only, *self.last} - {AVERAGE}, key=natural)


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


def scores(value: object) -> Scores:
    """Return a table of accuracies with its average, reckoned from the domains if it is not given."""
    found = {str(name): number(score) for name, score in table(value).items()}
    known = [score for name, score in found.items() if name != AVERAGE and math.isfinite(score)]
    if known and not math.isfinite(found.get(AVERAGE, math.nan)):
        found[AVERAGE] = math.fsum(known) / len(known)
    return found


def outcome(run: Run) -> Outcome:
    """Return the reportable accuracies: from the summary, or of a run without one from its rounds."""
    if run.finished or not run.rounds:
        given = table(run.summary.get("accuracy"))
        return Outcome(
            source_only=scores(given.get("source_only")),
            last=scores(given.get("last")),
            selected=scores(given.get("selected")),
            best=scores(given.get("best")),
            selected_round=whole(run.summary.get("selected_round")),
            best_round=whole(run.summary.get("best_round")),
        )
    measured = {int(line["round"]): scores(dig(line, "accuracy", "server")) for line in run.rounds}
    averages = {index: score.get(AVERAGE, math.nan) for index, score in measured.items()}
    known = {index: value for index, value in averages.items() if math.isfinite(value)}
    best = max(known, key=known.__getitem__) if known else None
    chosen = whole(run.rounds[-1].get("selected_round"))
    return Outcome(
        source_only=measured.get(0, {}),
        last=measured[run.last_round],
        selected=measured.get(chosen, {}) if chosen is not None else {},
        best=measured[best] if best is not None else {},
        selected_round=chosen,
        best_round=best,
    )


def domain_rows(run: Run) -> Sequence[DomainRow]:
    """Return one row a domain, and the average as the last row."""
    result = outcome(run)
    own = own_models(run)
    return [
        DomainRow(
            name=name,
            before=result.source_only.get(name, math.nan),
            after=result.last.get(name, math.nan),
            selected=result.selected.get(name, math.nan),
            best=result.best.get(name, math.nan),
            own=own.get(name, math.nan),
        )
        for name in (*result.domains, AVERAGE)
    ]


def own_models(run: Run) -> Scores:
    """Return how the clients' own latest models do on their own data, by domain."""
    if run.finished:
        return scores(dig(run.summary, "client_models", "last"))
    by_domain: dict[str, list[float]] = {}
    for client, domain in run.clients.items():
        latest = _latest(run, client, "local_accuracy")
        if math.isfinite(latest):
            by_domain.setdefault(domain, []).append(latest)
    return scores({domain: math.fsum(values) / len(values) for domain, values in by_domain.items()})


def client_rows(run: Run) -> Sequence[ClientRow]:
    """Return one row a client: the source model (round 0) against the last round."""
    source = dig(run.rounds[0], "clients") if run.rounds and run.rounds[0]["round"] == 0 else {}
    last = dig(run.rounds[-1], "clients") if run.rounds else {}
    return [
        ClientRow(
            name=client,
            before=number(dig(source, client, "accuracy")),
            after=number(dig(last, client, "accuracy")),
            domain=domain,
            own=_latest(run, client, "local_accuracy"),
            classes_before=number(dig(source, client, "effective_classes")),
            classes_after=number(dig(last, client, "effective_classes")),
            rounds=sum(client in sequence(line.get("participants")) for line in run.rounds),
            failures=sum(client in table(line.get("failures")) for line in run.rounds),
        )
        for client, domain in run.clients.items()
    ]


def _latest(run: Run, client: str, key: str) -> float:
    """Return a client's latest known value; a client does not take part in every round."""
    values = (number(dig(line, "clients", client, key)) for line in reversed(run.rounds))
    return next((value for value in values if math.isfinite(value)), math.nan)


def series(run: Run, *keys: str) -> Mapping[str, Sequence[float]]:
    """Return the named curves of a nested table, one value a round: domains first, the average last."""
    tables = [table(dig(line, *keys)) for line in run.rounds]
    names = sorted(
        {str(name) for values in tables for name in values}, key=lambda n: (n == AVERAGE, natural(n))
    )
    return {name: [number(values.get(name)) for values in tables] for name in names}


def round_grid(run: Run, key: str) -> Grid:
    """Return a client's value in each round."""
    rows = list(run.clients)
    values = [[number(dig(line, "clients", client, key)) for line in run.rounds] for client in rows]
    return Grid(rows, [int(line["round"]) for line in run.rounds], _matrix(values, len(rows)))


def epoch_grid(run: Run, key: str) -> Grid:
    """Return a client's value in each local epoch of each round; the column carries the round's number."""
    rows = list(run.clients)
    columns: list[int] = []
    moments: list[list[float]] = []
    for line in run.rounds:
        epochs = [sequence(dig(line, "clients", client, "epochs")) for client in rows]
        for place in range(max(map(len, epochs), default=0)):
            columns.append(int(line["round"]))
            moments.append(
                [number(dig(made[place], key)) if place < len(made) else math.nan for made in epochs]
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
    said = [(str(text), int(line["round"])) for line in run.rounds for text in sequence(line.get("warnings"))]
    known = {text for text, _ in said}
    # Without its round in front the same warning is one entry, however often it was given.
    found = grouped((text.removeprefix(f"round {index}: "), index) for text, index in said)
    only_summary = (str(text) for text in sequence(run.summary.get("warnings")))
    return {**found, **{text: () for text in only_summary if text not in known}}


def failures(run: Run) -> Mapping[str, Mapping[str, Sequence[int]]]:
    """Return by client each reason of failure with its rounds."""
    seen: dict[str, list[tuple[str, int]]] = {}
    for line in run.rounds:
        for client, reason in table(line.get("failures")).items():
            seen.setdefault(str(client), []).append((str(reason), int(line["round"])))
    return {client: grouped(seen[client]) for client in sorted(seen, key=natural)}
