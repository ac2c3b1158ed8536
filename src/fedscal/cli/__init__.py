"""The command line: ``fedscal run | compare | reproduce | predict | export | data | flower | ...``."""

from __future__ import annotations

import io
import signal
import sys
import tempfile
import traceback
from types import FrameType
from typing import NoReturn

import click
import typer
import typer.core

from fedscal.cli import data, flower, inspect, jobs, reproduce, use
from fedscal.cli.output import print_error
from fedscal.core.errors import FedscalError, OutOfSpace, shortened, shown

# The typer that Flower pins would mask brackets in plain help as if rich were to print them.
typer.core.HAS_RICH = False
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Adapt an image classifier to sites whose data look different, are unlabelled, and may not leave.",
)
app.command("run")(jobs.run)
app.command("compare")(jobs.compare)
app.command("reproduce")(reproduce.reproduce)
app.command("pretrain")(jobs.pretrain)
app.command("init")(use.init)
app.command("audit")(use.audit)
app.command("predict")(use.predict)
app.command("export")(use.export)
app.command("report")(inspect.report)
app.command("methods")(inspect.methods)
app.command("keys")(inspect.keys)
app.command("doctor")(inspect.doctor)
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")


_KNOCK_AGAIN = 2.0
"""Seconds between an interrupt that nobody seems to have heard and the next."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM; not KeyboardInterrupt, which typer would swallow without a word."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number  # what a shell says of a program that a signal ended


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    # An exception that comes up inside a destructor or a library's import is lost: knock again until heard.
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda _, frame: _stop(number, frame))
        signal.setitimer(signal.ITIMER_REAL, _KNOCK_AGAIN)
    raise Interrupted(number)


def _listen() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)


def _heard() -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def main() -> None:
    """Run a command; every foreseen trouble is one or two lines and an exit code of its own."""
    _listen()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without unicode still shows the result
    try:
        sys.exit(app(standalone_mode=False))
    except FedscalError as error:
        print_error(f"error: {error}")
        sys.exit(error.exit_code)
    except click.ClickException as error:  # a command line that click cannot read
        said = io.StringIO()
        error.show(said)
        print_error(shortened(said.getvalue().rstrip()))
        sys.exit(error.exit_code)
    except Interrupted as signalled:
        _heard()
        print_error(
            "interrupted. A run goes on with fedscal run --resume DIR, other commands by repeating them."
        )
        sys.exit(signalled.exit_code)
    except MemoryError:
        print_error("error: out of memory. Use a smaller batch_size or fewer workers.")
        sys.exit(OutOfSpace.exit_code)
    except BrokenPipeError:
        sys.exit(0)
    except OSError as error:
        named = shown(error.filename or "a file", 500)
        print_error(f"error: {named} cannot be used: {error.strerror or error}")
        sys.exit(OutOfSpace.exit_code)
    except Exception as error:
        with tempfile.NamedTemporaryFile("w", prefix="fedscal-", suffix=".log", delete=False) as log:
            traceback.print_exc(file=log)
        print_error(f"a bug: {type(error).__name__}: {shown(error, 500)}\nThe traceback is in {log.name}")
        sys.exit(1)
