"""The commands that look: report, watch, methods, doctor."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from fedscal.cli import AllowCode, going_on_by, print_error
from fedscal.cli.output import console, print_json, print_plain, progress, table_of
from fedscal.core.errors import UsageError
from fedscal.core.user_code import load_plugins
from fedscal.methods import ADAPTATIONS, METHODS

_COLUMNS = {
    "idea": "idea",
    "caveat": "caveat",
    "reveals": "leaves a client beside its weights",
    "reference": "reference",
}
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run directories.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page to write.")] = None,
    images: Annotated[
        bool | None,
        typer.Option(
            "--images/--no-images",
            help="First ask the models anew about the clients' images, which must be here: with small "
            "pictures of some on the page, or without.",
        ),
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Write the HTML report of a run, or one page that compares several.

    It needs the run directory only. What the models answer is shown as the run, or --images, left it there.
    """
    from fedscal.report import write_comparison, write_report

    if images is not None:
        _ask_again(directories, images)
    if len(directories) == 1:
        path = write_report(directories[0], out=out)
    else:
        path = write_comparison(directories, out or Path("comparison.html"))
    print_plain(str(path))


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory; it need not be there yet.")],
    port: Annotated[
        int, typer.Option(help="The port to listen on, on this machine only; 0: any.", min=0, max=65535)
    ] = 0,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = False,
) -> None:
    """Show a run in the browser while it goes on, on this machine only; until Ctrl-C.

    The page follows the run: round by round, through a stop and --resume, to its end. Nothing is written.
    """
    from fedscal.report.live import watch

    def begun(url: str) -> None:
        print_plain(url)
        print_error("Open this address on this machine. Ctrl-C ends the view, not the run.")
        if open_:
            webbrowser.open(url)

    with going_on_by(lambda: "The run goes on without this view."):
        watch(run, port, begun)


def _ask_again(directories: list[Path], images: bool) -> None:
    from fedscal.experiment.answering import ask_again

    if len(directories) > 1:
        raise UsageError("--images is for the page of one run: give one directory.")
    with progress(quiet=False) as shown:
        ask_again(directories[0], images=images, progress=shown)


def methods(as_json: Json = False) -> None:
    """List the federated methods and the local adaptations."""
    load_plugins()
    if as_json:
        rows = {
            name: {field: getattr(m, field) for field in ("title", "adaptation", *_COLUMNS)}
            for name, m in METHODS.items()
        }
        print_json({"methods": rows, "adaptations": sorted(ADAPTATIONS)})
        return
    rows_ = [[name, *(getattr(m, field) for field in _COLUMNS)] for name, m in METHODS.items()]
    console.print(table_of(["method=", *_COLUMNS.values()], rows_))
    adaptations = [[name, (cls.__doc__ or "").strip().splitlines()[0]] for name, cls in ADAPTATIONS.items()]
    console.print(table_of(["adaptation=", "loss"], adaptations))


def doctor(
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="DIR", help="Keys of a Flower federation, or of a site.")
    ] = None,
    server: Annotated[
        str, typer.Option("--server", metavar="HOST:PORT", help="A server of a Flower federation.")
    ] = "",
    port: Annotated[
        list[int] | None, typer.Option("--port", help="A port of this machine that must be free.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", metavar="DIR", help="A run: what differs from where it was begun.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check this machine: packages, disk, one real training step; keys, server and ports of a federation."""
    from fedscal.cli.doctor import examine, examine_federation, examine_run
    from fedscal.flower.launch import Address

    address = Address.parse(server, keys / "ca.crt" if keys else None) if server else None
    findings = [
        *examine(),
        *(examine_run(run) if run else []),
        *examine_federation(keys, address, port or []),
    ]
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        marks = {True: "ok", False: "PROBLEM"}
        rows = [[f.check, marks[f.ok], f.found, f.advice] for f in findings]
        console.print(table_of(["check", "", "found", "what to do"], rows))
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
