"""The result in sentences: is the adapted model better, which clients lost, how reliable is the number."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedscal.core.errors import some
from fedscal.core.text import count, decimals, percent, signed
from fedscal.data.registry import BENCHMARKS
from fedscal.data.remote import PREFIX
from fedscal.experiment.load import Run
from fedscal.experiment.metrics import Outcome, collapsed, latest_judged
from fedscal.experiment.outcome import (
    Change,
    client_rows,
    domain_rows,
    failures,
    outcome,
    own_models,
    series,
    warnings,
)
from fedscal.experiment.records import AVERAGE, Delivery
from fedscal.runtime.signals import SIGNALS

NAMED_CLIENTS = 5  # more names than that are a table, not a sentence
_WORDS = {"better": "Better", "worse": "Worse", "same": "No change", "unsure": "Unsure", "unknown": "Unknown"}
_BEGINNINGS = ("Do not use", "Probably better")
"""Of headlines that say it in other words than their tone."""


@dataclass(frozen=True)
class Verdict:
    """One or two sentences, and details.

    Attributes:
        tone: ``better``, ``worse``, ``same``, ``unsure`` or ``unknown``.
        headline: The verdict.
        details: Further sentences, in order of weight.
        commands: What to type next, with what it is for.
    """

    tone: str
    headline: str
    details: Sequence[str] = ()
    commands: Sequence[str] = ()

    @property
    def word(self) -> str:
        """The verdict in a word or three; colour alone is no information for everybody."""
        plain = next((words for words in _BEGINNINGS if self.headline.startswith(words)), "")
        return plain or _WORDS.get(self.tone, _WORDS["unknown"])


def judge(run: Run) -> Verdict:
    """Return the verdict on a run."""
    result = outcome(run)
    if run.last_round == 0:
        tone, headline = "unknown", _nothing_adapted(result)
    elif result.accuracy.labelled:
        rows = [row for row in domain_rows(run) if row.name != AVERAGE]
        moment = "(last round)" if run.finished else f"(round {run.last_round}, the last so far)"
        tone, headline = _accuracy(rows, result, moment)
        tone = "unsure" if tone != "worse" and (_refused(run) or fallen_sites(run)) else tone
    elif run.audit and run.audit.judges_adapted:
        tone, headline = run.audit.verdict, run.audit.sentence
    else:
        tone, headline = _label_free(run)
    details = (
        _fallen(run),
        _own_verdict(run),
        _clients(run),
        _choice(result),
        _own(run, result),
        _trouble(run),
    )
    said = [sentence for sentence in details if sentence and sentence not in headline]
    return Verdict(tone, headline, said, next_commands(run))


def standing(run: Run) -> str:
    """Return the progress of an unfinished run; empty if it is finished."""
    if run.finished:
        return ""
    planned = run.spec.get("rounds")
    goal = f" of {planned}" if isinstance(planned, int) else ""
    return f"Unfinished: {run.last_round}{goal} rounds are recorded. The run is going on or was stopped."


def _nothing_adapted(result: Outcome) -> str:
    accuracy = (
        percent(result.accuracy.source_only.average) if result.accuracy.labelled else "unknown (no labels)"
    )
    return f"No round of adaptation is recorded. The source model's average accuracy is {accuracy}."


def _accuracy(rows: Sequence[Change], result: Outcome, moment: str) -> tuple[str, str]:
    """Compare the last round with the source model; a loss in any domain comes first."""
    domains = count(len(rows), "domain")
    before, after = (percent(stage.average) for stage in (result.accuracy.source_only, result.accuracy.last))
    worse = sorted((row for row in rows if row.word == "WORSE"), key=lambda row: row.delta)
    better = sum(row.word == "better" for row in rows)
    average = f"average {before} → {after} {moment}."
    if worse:
        named = some(
            [f"{row.name} {percent(row.before)} → {percent(row.after)}" for row in worse], NAMED_CLIENTS
        )
        lost = f"The adapted model is WORSE than the source model in {len(worse)} of {domains}: {named}."
        return "worse", f"{lost} Over all domains: {average}"
    if not any(row.word in {"same", "better"} for row in rows):
        return "unknown", f"The last round cannot be compared with the source model: {average}"
    if not better:
        return "same", f"The adapted model is no better and no worse than the source model: {average}"
    return "better", f"The adapted model is better than the source model in {better} of {domains}: {average}"


_DELIVERIES = {
    "better": (
        "better",
        "Probably better than the source model: at every site its answers stay near the source model's, as "
        "in the runs that gained.",
    ),
    "unsure": ("unsure", "Unsure whether the model got better."),
    "do not use": ("worse", "Do not use this model before you have checked it on labelled images."),
}


def _delivery(run: Run) -> Delivery | None:
    return run.summary.delivery if run.summary and run.finished else None


def _because(delivery: Delivery) -> str:
    why = "; ".join(delivery.reasons)
    return f" Why: {why}." if why else ""  # names of sites stay as they are written


def _own_verdict(run: Run) -> str:
    """Say the run's verdict without labels where labels, or an audit, gave the headline."""
    delivery = _delivery(run)
    known = outcome(run).accuracy.labelled or (run.audit and run.audit.judges_adapted)
    if not delivery or not known:
        return ""
    moment = f"round {delivery.round}" if delivery.round else "the source model"
    return f"Without labels the run delivers {moment}, verdict “{delivery.verdict}”.{_because(delivery)}"


def _refused(run: Run) -> bool:
    delivery = _delivery(run)
    return delivery is not None and delivery.verdict == "do not use"


def fallen_sites(run: Run) -> Sequence[str]:
    """Return the clients whose predictions collapsed in the last round: an average hides one of them."""
    if run.last_round == 0 or not run.rounds:
        return []
    return sorted(collapsed(latest_judged(run.rounds), run.rounds[0]))


def _fallen(run: Run) -> str:
    """Name the sites that collapsed, unless the run's own verdict does."""
    fallen = fallen_sites(run)
    if not fallen or _delivery(run):
        return ""
    return f"In the last round predictions collapse to few classes at {some(fallen, NAMED_CLIENTS)}."


def next_commands(run: Run) -> Sequence[str]:
    """Return what to type next about a finished run on somebody's own images, with real paths."""
    clients, benchmark = (str(run.spec.get(key) or "") for key in ("clients", "benchmark"))
    if not run.finished or not (clients or benchmark not in {"", *BENCHMARKS}):
        return []
    path, delivery = shlex.quote(str(run.path)), _delivery(run)
    audit = f"fedscal audit {path} FOLDER  # labelled images, FOLDER/<site>/<class>/*: 50 a site tell much"
    use = f"fedscal predict {path} IMAGES --out answers.csv  # a label for each image"
    looks = [_look(run, clients, site) for site in delivery.sites] if delivery else []
    found = [command for command in looks if command][:NAMED_CLIENTS]
    decided = run.audit and run.audit.judges_adapted and run.audit.verdict != "unsure"
    return [*found, *([] if decided else [audit]), use]


def _look(run: Run, clients: str, site: str) -> str:
    """Return how to look at the answers at a site, if its images are a folder of the run's."""
    if not clients or clients.startswith(PREFIX):
        return ""
    answers = shlex.quote(f"{site}.csv")
    kept = f" --site {shlex.quote(site)}" if run.spec.get("statistics") == "site" else ""
    images = shlex.quote(str(Path(clients) / site))
    return (
        f"fedscal predict {shlex.quote(str(run.path))} {images}{kept} --out {answers}  # look at its answers"
    )


def _label_free(run: Run) -> tuple[str, str]:
    """Give the verdict of a run that made one; else say that accuracy is unknown, and the signals."""
    if delivery := _delivery(run):
        tone, words = _DELIVERIES[delivery.verdict]
        return tone, f"{words}{_because(delivery)}"
    curves = series(run, lambda line: line.signals)
    names = [name for name in SIGNALS if name in curves and math.isfinite(curves[name][-1])]
    moved = [f"{name} {decimals(curves[name][0])} → {decimals(curves[name][-1])}" for name in names]
    text = f" Label-free signals, source model → round {run.last_round}: {', '.join(moved)}." if moved else ""
    fallen = _fallen(run)
    beware = f"Do not use this model before you have checked it. {fallen} " if fallen else ""
    return "worse" if fallen else "unknown", (
        f"{beware}Accuracy is unknown: this run has no labels, so nobody can say from it whether the model "
        f"got better or worse.{text}"
    )


def _clients(run: Run) -> str:
    """Name the clients that lost: an average hides them."""
    rows = [row for row in client_rows(run) if row.word != "unknown"]
    if not rows or run.last_round == 0:
        return ""
    worse = sorted((row for row in rows if row.word == "WORSE"), key=lambda row: row.delta)
    if not worse:
        return f"None of the {len(rows)} clients got worse." if len(rows) > 1 else ""
    named = some([f"{row.name} ({signed(row.delta)})" for row in worse], NAMED_CLIENTS)
    return f"{len(worse)} of {count(len(rows), 'client')} got WORSE, in points: {named}."


def _choice(result: Outcome) -> str:
    """Compare other choices of the round, and say which of them is an oracle."""
    if result.selected_round is None:
        return ""
    if not result.accuracy.labelled:
        return f"The label-free choice is round {result.selected_round}."
    chosen = percent(result.accuracy.selected.average)
    sentence = f"The label-free choice, round {result.selected_round}, has {chosen}"
    if result.best_round is None:
        return f"{sentence}."
    best = percent(result.accuracy.best.average)
    return (
        f"{sentence}; the best round, {result.best_round}, has {best}, but only labels can find it (oracle)."
    )


def _own(run: Run, result: Outcome) -> str:
    own, last = own_models(run).average, result.accuracy.last.average
    if not (math.isfinite(own) and math.isfinite(last)):
        return ""
    return f"On their own data the clients' own models have {percent(own)}, the server model {percent(last)}."


def _trouble(run: Run) -> str:
    lost = sum(len(rounds) for reasons in failures(run).values() for rounds in reasons.values())
    parts = [
        count(amount, noun) for amount, noun in ((len(warnings(run)), "warning"), (lost, "failure")) if amount
    ]
    return f"See “Warnings and failures”: {' and '.join(parts)}." if parts else ""
