"""The model card of an export: what it is, its input, its results, its limits."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fedscal.core.errors import ModelRefused
from fedscal.core.table import Table, as_markdown
from fedscal.core.text import decimals, percent, signed
from fedscal.data.views import AugmentedViews
from fedscal.deploy.classifier import Classifier
from fedscal.experiment.audits import AUDIT, Audit, SiteAudit
from fedscal.experiment.load import Run, load_run
from fedscal.experiment.outcome import client_rows, domain_rows, outcome, warnings
from fedscal.experiment.records import ClientRecord
from fedscal.methods import METHODS
from fedscal.models.store import read_card

_LIMITS = (
    "It was adapted without labels. Accuracy is known only where a table above gives it; low entropy and "
    "other label-free signals do not prove that answers are right.",
    "It knows these classes only, and gives one of them to every image, also to one that shows none of them.",
    "Its confidence is not calibrated.",
    "Other cameras, sites or seasons than those it was adapted to are new domains: check it there before use "
    "(`fedscal audit`).",
)


def card_text(classifier: Classifier, run: Run | None, site: str = "") -> str:
    """Return the card as Markdown, with the results of the model's run if there is one.

    Args:
        classifier: the model.
        run: its run.
        site: whose statistics it was given.
    """
    parts = [identity(classifier, run, site), *_input(classifier)]
    if run:
        parts += [
            *_results(classifier, run),
            *_audit(classifier, run),
            *_doubts(classifier, run),
            *_traffic(run),
        ]
    return "\n\n".join([*parts, "## Limits", _list(_LIMITS)]) + "\n"


def run_of(classifier: Classifier) -> Run | None:
    """Return the run whose ``model`` folder holds this model, if there is one."""
    folder = classifier.path.parent.parent
    return load_run(folder) if (folder / "spec.toml").exists() else None


def doubts(classifier: Classifier, run: Run) -> list[str]:
    """Return reasons to prefer another model to this one; none if the run gives no warning."""
    reasons = [*_judged(classifier, run), *(f"the run warned: {text}" for text in warnings(run))]
    chosen = run.summary.selected_round if run.summary else None
    selected = classifier.path.with_name("selected.safetensors")
    if classifier.path.stem == "last" and chosen not in (None, run.last_round) and selected.exists():
        reasons.append(f"without labels one would rather choose round {chosen}: {selected}")
    return reasons


def _judged(classifier: Classifier, run: Run) -> Iterator[str]:
    """Give the verdict of an audit of this model if it knows, else the run's own, unless it is good."""
    audit, delivery = _audit_of(classifier, run), run.summary.delivery if run.summary else None
    if audit and audit.verdict in {"better", "worse"}:
        if audit.verdict == "worse":
            yield f"audited: {audit.sentence}"
    elif delivery and delivery.verdict != "better" and classifier.path.stem != "source":
        yield (
            f"the run's verdict on its model is '{delivery.verdict}': {'; '.join(delivery.reasons)}. "
            f"Check it on labelled images: fedscal audit {shlex.quote(str(run.path))} FOLDER"
        )


def _audit_of(classifier: Classifier, run: Run) -> Audit | None:
    """Return the run's last audit if it was one of this model."""
    found = run.audit
    return found if found and found.model_sha256 == classifier.card.weights_sha256 else None


def identity(classifier: Classifier, run: Run | None, site: str = "") -> str:
    """Return the beginning of a card: the same for every export of one model, whatever is known of it."""
    card = classifier.card
    registered = METHODS.get(card.method or "")
    method = registered.title if registered else card.method or "source model"
    title = "# Model card: " + as_markdown(f"{method} from {card.source or 'an unnamed source'}")
    facts = {
        "Network": card.model,
        "Adapted by": f"{method}, {run.fact('adaptation')}, {card.round} rounds" if run else "",
        "Weights sha256": card.weights_sha256,
        "Statistics": f"those of the site {site}" if site else "",
        "Source model sha256": _source_hash(classifier),
        "Accuracy on held-out source images": _source_accuracy(run),
        "Written by": f"fedscal {run.fact('version')}" if run else "",
    }
    listed = _list(as_markdown(f"{name}: {value}") for name, value in facts.items() if value)
    return f"{title}\n\n{listed}"


def _source_hash(classifier: Classifier) -> str:
    source = classifier.path.with_name("source.safetensors")
    return read_card(str(source)).weights_sha256 if source.exists() else ""


def _source_accuracy(run: Run | None) -> str:
    accuracy = run.summary.source_accuracy if run and run.summary else None
    return "" if accuracy is None else percent(accuracy)


def _input(classifier: Classifier) -> Iterator[str]:
    channels, height, width = classifier.shape
    yield "## Classes, in the order of the outputs"
    yield ", ".join(map(as_markdown, classifier.classes))
    yield "## Input and output"
    yield (
        f"Batches of {channels} x {height} x {width} pixels with values from 0 to 255, upright by the "
        f"camera's orientation; logits come out. {_preparation(classifier.module.views)} Normalisation is "
        "part of the model."
    )


def _preparation(views: object) -> str:
    if isinstance(views, AugmentedViews) and views.side is not None:
        if views.whole:
            return f"Images are resized to squares of {views.side} pixels."
        return f"Images are resized to a larger square, of which the middle {views.side} pixels are taken."
    return "Images are resized to this size."


def _results(classifier: Classifier, run: Run) -> Iterator[str]:
    """Report this model's own round, which is not the last for the source or the selected model."""
    round_ = classifier.card.round or 0
    until = replace(run, rounds=[line for line in run.rounds if line.round <= round_], summary=None)
    if not until.rounds:
        return
    yield "## Results"
    if outcome(until).accuracy.labelled:
        yield _table(f"Accuracy {_moment(round_, run.last_round)}", _accuracy_rows(until))
    yield _table("Sites", _site_rows(until))


def _moment(round_: int, last: int) -> str:
    if round_ == 0:
        return "of the source model"
    return "in the last round" if round_ == last else f"in round {round_} of {last}"


def _audit(classifier: Classifier, run: Run) -> Iterator[str]:
    """Show the last audit, if it was one of this model."""
    for note in run.notes:
        if note.startswith(AUDIT):
            raise ModelRefused(f"{run.path}: {note} Remove it, or audit again.")
    audit = _audit_of(classifier, run)
    if audit and audit.sites:
        yield _table("Audit on labelled images", _audit_rows(audit.sites))
        yield as_markdown(f"{audit.sentence} {audit.seen.sentence(audit.images)}")


def _doubts(classifier: Classifier, run: Run) -> Iterator[str]:
    if reasons := doubts(classifier, run):
        yield "Beware:\n\n" + _list(map(as_markdown, reasons))


def _accuracy_rows(run: Run) -> Sequence[Mapping[str, str]]:
    return [
        {
            "domain": row.name,
            "source model": percent(row.before),
            "adapted": percent(row.after),
            "change": f"{signed(row.delta)} {row.word}",
        }
        for row in domain_rows(run)
    ]


def _site_rows(run: Run) -> Sequence[Mapping[str, str]]:
    first, last = run.rounds[0], run.rounds[-1]
    return [
        {
            "site": row.name,
            "images": decimals(last.client(row.name).images, 0),
            "rounds": str(row.rounds),
            "accuracy before": percent(row.before),
            "accuracy after": percent(row.after),
            "entropy before": _entropy(first.client(row.name)),
            "entropy after": _entropy(last.client(row.name)),
            "classes in use": decimals(row.classes_after, 1),
        }
        for row in client_rows(run)
    ]


def _entropy(client: ClientRecord) -> str:
    return decimals(client.signals.get("entropy", math.nan))


def _audit_rows(sites: Sequence[SiteAudit]) -> Sequence[Mapping[str, str]]:
    return [
        {
            "site": site.site,
            "images": str(site.images),
            "source model": str(site.source or ""),
            "adapted": str(site.adapted),
        }
        for site in sites
    ]


def _traffic(run: Run) -> Iterator[str]:
    name = run.fact("method")
    extra = METHODS[name].reveals if name in METHODS else ""
    yield "## What left the sites"
    yield (
        "The weights that each site trained, its number of images, and scalars: losses, entropies, "
        "thresholds, times, and the accuracy where it has labels. No image, file name or single prediction."
        + (f" This method also sends {extra}." if extra else "")
    )


def _table(title: str, rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows as Markdown, without empty columns."""
    empty = {"", percent(math.nan)}
    header = [name for name in rows[0] if any(row[name] not in empty for row in rows)] if rows else []
    return Table(title, header, [[row[name] for name in header] for row in rows]).markdown().rstrip()


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items)
