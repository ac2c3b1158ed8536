"""Render the pages: the templates' data and filters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
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
from fedscal.report import commands, crowd, glance, links, method_charts, run_charts
from fedscal.report.answered import consistent
from fedscal.report.charts import Exhibit, embedded
from fedscal.report.looks import looks
from fedscal.report.scripts import policy, scripts, style
from fedscal.report.verdict import judge, standing
from fedscal.runtime.signals import SIGNALS


def report_page(
    run: Run, *, place: Path | None = None, extra_scripts: Sequence[str] = (), connect: str = ""
) -> str:
    """Return the page of one run.

    Args:
        run: the run.
        place: the folder of the page, from which its links lead; the run's own if it is not given.
        extra_scripts: scripts that run in it after its own.
        connect: what these may ask over the network, as a content security policy says it: ``'self'``.
    """
    verdict, drawn = judge(run), _drawn(run)
    seen = looks(run.answers) if run.answers and consistent(run.answers) else None
    exhibits = [*(seen.exhibits if seen else ()), *(one for group in drawn.values() for one in group)]
    source = run.fact("source") or "a given model"
    return _render(
        "run.html",
        exhibits,
        _Extra(extra_scripts, connect),
        **drawn,
        run=run,
        title=f"{described(run.fact('method'))} on {run.fact('benchmark')}, source {source}",
        standing=standing(run),
        verdict=verdict,
        tiles=glance.tiles(run),
        glance=glance.glance(run),
        commands=commands.commands(run, verdict),
        images_command=commands.images_command(run),
        looks=seen,
        comparison=links.comparison_link(run.path, place or run.path),
        audit=run.audit,
        outcome=model.outcome(run),
        **_rows(run),
        warnings=model.warnings(run),
        failures=model.failures(run),
        totals=totals(run),
        environment=dump(run.environment) if run.environment else {},
        signal_captions=SIGNALS,
    )


def _drawn(run: Run) -> dict[str, Sequence[Exhibit]]:
    """Return the charts of a run, by the section that shows them."""
    return {
        "curves": run_charts.curves(run),
        "strip": run_charts.client_strip(run),
        "signals": run_charts.signals(run),
        "client_maps": run_charts.heat_maps(run),
        "cost": run_charts.cost(run),
    }


def _rows(run: Run) -> dict[str, object]:
    """Return the rows of the tables of domains and clients; of many, those at the ends."""
    *each, average = model.domain_rows(run)
    domains, clients = [*crowd.at_the_ends(each), average], crowd.clients_at_the_ends(run)
    return {
        "domains": domains,
        "clients": clients,
        "shares": any(math.isfinite(row.source_share) for row in clients),
        "hidden_domains": len(each) + 1 - len(domains),
        "hidden_clients": len(run.clients) - len(clients),
        "file_of_clients": crowd.file_of_clients(run),
    }


def comparison_page(runs: Sequence[Run], overall: Table | None = None, *, place: Path | None = None) -> str:
    """Return the page over several runs; it has links to theirs if it is known where it will be."""
    compared, left_out = comparison.usable(runs)
    tables = comparison.source_tables(compared)
    left_out = {str(run.path): left_out[str(run.path)] for run in runs if _left_out(run, left_out)}
    charts = [method_charts.charts(table, index) for index, table in enumerate(tables)]
    return _render(
        "comparison.html",
        [one for group in charts for one in group],
        title="Comparison of methods",
        runs=[
            _RunRow(
                run,
                row.label,
                model.outcome(run).accuracy.last.average,
                links.report_link(run.path, place) if place else "",
            )
            for run, row in zip(runs, comparison.rows(runs), strict=True)
        ],
        leads=method_charts.leads(tables),
        leaderboards=list(comparison.leaderboards(tables)),
        overall=overall,
        left_out=left_out,
        audits=audited.audit_tables(runs),
        tables=[(table.table(), drawn) for table, drawn in zip(tables, charts, strict=True)],
        differences=comparison.differences(compared),
        repeated=comparison.repeated(tables),
    )


@dataclass(frozen=True)
class _RunRow:
    """A run in the list of a comparison."""

    run: Run
    label: str
    last: float
    link: str


def _left_out(run: Run, reasons: Mapping[str, str]) -> bool:
    """Whether a run is in no table: one without labels may be in one of the audits."""
    return str(run.path) in reasons and not audited.has_audit(run)


def tables_page(
    title: str,
    tables: Sequence[Table],
    caption: str,
    warning: str = "",
    notes: Sequence[str] = (),
    figures: Sequence[tuple[str, str, str, Mapping[str, str]]] = (),
) -> str:
    """Return a page: a warning, figures, tables with one caption, and notes.

    A figure is its title, its caption, its svg, and by kind the path of it as a file of its own.
    """
    return _render(
        "tables.html",
        title=title,
        tables=tables,
        caption=caption,
        warning=warning,
        notes=notes,
        # The only trusted markup: our own drawings, which escape every name.
        figures=[(heading, words, Markup(svg), paths) for heading, words, svg, paths in figures],
    )


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


@dataclass(frozen=True)
class _Extra:
    """What a page runs and asks for beside what every page does."""

    scripts: Sequence[str] = ()
    connect: str = ""


_NOTHING = _Extra()


def _render(template: str, exhibits: Sequence[Exhibit] = (), extra: _Extra = _NOTHING, **values: Any) -> str:
    inline = [*scripts(charts=bool(exhibits)), *extra.scripts]
    page = _environment().get_template(template)
    return page.render(
        policy=policy(inline, extra.connect),
        style=Markup(style()),
        scripts=list(map(Markup, inline)),
        charts=Markup(embedded(exhibits)) if exhibits else "",
        **values,
    )


@cache
def _environment() -> Environment:
    """Return what renders the templates, once a process: it keeps them compiled."""
    environment = Environment(
        loader=PackageLoader("fedscal.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for writer in (text.percent, text.signed, text.decimals, text.spans, text.plain, text.count):
        environment.filters[writer.__name__] = writer
    return environment
