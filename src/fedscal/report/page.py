"""Render the pages: the templates' data and filters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedscal.compare import audited, comparison
from fedscal.core import text
from fedscal.core.convert import dump
from fedscal.core.table import Table
from fedscal.experiment import outcome as model
from fedscal.experiment.load import Run
from fedscal.experiment.metrics import total_seconds
from fedscal.methods import described
from fedscal.report import figures
from fedscal.report.verdict import judge, standing
from fedscal.runtime.signals import SIGNALS


@dataclass(frozen=True)
class Exhibit:
    """A figure with its title and caption."""

    title: str
    caption: str
    svg: Markup


_BETTER = ", ".join(f"{'higher' if signal.sign > 0 else 'lower'} {name}" for name, signal in SIGNALS.items())
Figures = Sequence[tuple[str, str, Callable[[Run], str]]]
"""Titles, captions, and what draws each figure."""
CURVES: Figures = (
    (
        "Accuracy",
        "Round 0 is the source model. Solid: the server model on each domain; dashed: the models that this "
        "round's participants trained, on their own data.",
        figures.accuracy,
    ),
    (
        "Pseudo-label accuracy",
        "How many of the labels that the clients guess for themselves, and learn from, are right.",
        figures.pseudo_labels,
    ),
    (
        "Label-free signals",
        f"What can be seen without labels: {_BETTER} are usually good signs, none is a proof. Dotted: the "
        "round they choose.",
        figures.signals,
    ),
)
CLIENTS: Figures = (
    (
        "Threshold and skewness",
        "One column per local epoch. Red skewness: the client is confident and its threshold is raised; "
        "blue: it is unsure and the threshold is lowered. Grey: the client did not take part.",
        figures.thresholds,
    ),
    (
        "Share of samples over the threshold",
        "Only these samples count in the alignment loss: at 0 nothing is aligned, at 1 nothing is filtered.",
        figures.shares,
    ),
    (
        "Entropy",
        "Mean entropy of the server model's predictions on each client's data: dark is confident.",
        figures.entropy,
    ),
    (
        "Weight drift",
        "Distance between the model a client was sent and the one it sent back. A row that stands out pulls "
        "the average its way.",
        figures.drift,
    ),
)
COST: Figures = (
    (
        "Time and bytes",
        "The time of each whole round, and the bytes summed over its participants.",
        figures.cost,
    ),
)


def report_page(run: Run) -> str:
    """Return the page of one run."""
    source = run.fact("source") or "a given model"
    return _render(
        "template.html",
        run=run,
        title=f"{described(run.fact('method'))} on {run.fact('benchmark')}, source {source}",
        standing=standing(run),
        verdict=judge(run),
        audit=run.audit,
        outcome=model.outcome(run),
        domains=model.domain_rows(run),
        clients=model.client_rows(run),
        warnings=model.warnings(run),
        failures=model.failures(run),
        curves=_exhibits(run, CURVES),
        client_maps=_exhibits(run, CLIENTS),
        cost=_exhibits(run, COST),
        totals=totals(run),
        environment=dump(run.environment) if run.environment else {},
        signals=SIGNALS,
    )


def comparison_page(runs: Sequence[Run], overall: Table | None = None) -> str:
    """Return the page over several runs."""
    compared, left_out = comparison.usable(runs)
    tables = comparison.source_tables(compared)
    left_out = {str(run.path): left_out[str(run.path)] for run in runs if _left_out(run, left_out)}
    return _render(
        "comparison.html",
        title="Comparison of methods",
        runs=[
            (run, row.label, model.outcome(run).accuracy.last.average)
            for run, row in zip(runs, comparison.rows(runs), strict=True)
        ],
        leaderboards=list(comparison.leaderboards(tables)),
        overall=overall,
        left_out=left_out,
        audits=audited.audit_tables(runs),
        tables=[(table.table(), _method_figures(table, index)) for index, table in enumerate(tables)],
        differences=comparison.differences(compared),
        repeated=comparison.repeated(tables),
    )


def _left_out(run: Run, reasons: Mapping[str, str]) -> bool:
    """Whether a run is in no table: one without labels may be in one of the audits."""
    return str(run.path) in reasons and not audited.has_audit(run)


def tables_page(
    title: str,
    tables: Sequence[Table],
    caption: str,
    warning: str = "",
    notes: Sequence[str] = (),
    figures: Sequence[tuple[str, str, str]] = (),
) -> str:
    """Return a page: a warning, figures (title, caption, svg), tables with one caption, and notes."""
    return _render(
        "tables.html",
        title=title,
        tables=tables,
        caption=caption,
        warning=warning,
        notes=notes,
        figures=_with_svg(figures),
    )


def _method_figures(table: comparison.SourceTable, index: int) -> list[Exhibit]:
    drawn = [
        (
            "Average accuracy over the rounds",
            "Mean over the seeds of the server model's average accuracy; the band is one standard deviation.",
            figures.methods(f"methods-{index}", "Average accuracy of each method", table.curves),
        ),
        (
            "Pseudo-labels: difference to FedLoA over the rounds",
            "Accuracy of the clients' pseudo-labels minus FedLoA's in the same round with the same seed; "
            "mean over the seeds, the band is one standard deviation.",
            figures.methods(f"labels-{index}", "Pseudo-labels beside FedLoA's", table.label_gaps, "points"),
        ),
    ]
    return _with_svg(drawn)


def totals(run: Run) -> Mapping[str, str]:
    """Return the whole run's time and traffic, without what is unknown."""
    if not (run.summary or run.rounds):
        return {}
    seconds = run.summary.seconds if run.summary else total_seconds(run.rounds)
    traffic = [line.bytes for line in run.rounds if line.bytes]
    facts = {
        "Time to adapt": text.duration(seconds.adapt),
        "Time to evaluate": text.duration(seconds.evaluate),
        "Time to pretrain": text.duration(seconds.pretrain),
        "Sent to clients": text.size(sum(line.down for line in traffic) or math.nan),
        "Sent by clients": text.size(sum(line.up for line in traffic) or math.nan),
    }
    return {name: value for name, value in facts.items() if value != text.UNKNOWN}


def _exhibits(run: Run, wanted: Figures) -> Sequence[Exhibit]:
    """Draw the figures that have something to show."""
    return _with_svg((title, caption, draw(run)) for title, caption, draw in wanted)


def _with_svg(figures: Iterable[tuple[str, str, str]]) -> list[Exhibit]:
    # The only trusted markup: our own drawings, which escape every name.
    return [Exhibit(title, caption, Markup(svg)) for title, caption, svg in figures if svg]


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("fedscal.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for writer in (text.percent, text.signed, text.decimals, text.spans, text.plain, text.count):
        environment.filters[writer.__name__] = writer
    return environment.get_template(template).render(**values)
