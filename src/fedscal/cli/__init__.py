"""The command line: ``fedscal run | compare | reproduce | predict | export | data | flower | ...``."""

from __future__ import annotations

import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
import typer.core
import typer.main

from fedscal.cli.guide import EPILOGS
from fedscal.core.errors import FedscalError, OutOfSpace, UsageError, nearest, shortened, shown
from fedscal.core.user_code import allow_code
from fedscal.core.version import __version__

if TYPE_CHECKING:
    import click

# The typer that Flower pins would mask brackets in plain help as if rich were to print them.
typer.core.HAS_RICH = False


class _Argument(typer.core.TyperArgument):
    """An argument whose help is shown: click from 8.5 on has one too, and drops that of this typer."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._text: str = given.get("help") or ""

    def get_help_record(self, ctx: click.Context) -> Any:
        """Return name and help."""
        record = super().get_help_record(ctx)
        return record and (record[0], record[1] if self.help else f"{self._text}  {record[1]}".strip())


vars(typer.main)["TyperArgument"] = _Argument
# A typer from 0.26 on brings a click of its own: its errors are found by way of one that typer exports.
_CommandLineError = cast("type[click.ClickException]", typer.BadParameter.__mro__[2])
_COMPLETE = "_FEDSCAL_COMPLETE"
"""The environment variable by which a shell asks what could follow."""
_COMMANDS = {
    "run": ("jobs:run", "adapt a source model to unlabelled clients"),
    "compare": ("jobs:compare", "run a grid of methods, seeds or any keys; tables and tests"),
    "reproduce": ("reproduce:reproduce", "make a table of the paper beside its printed numbers"),
    "pretrain": ("jobs:pretrain", "train the source model only"),
    "init": ("use:init", "write a recipe for a folder of images"),
    "audit": ("use:audit", "check a model on a few labelled images"),
    "predict": ("use:predict", "ask a model about images"),
    "export": ("use:export", "write a model for other programs, with its card"),
    "report": ("inspect:report", "write the page of a run, or of several"),
    "watch": ("inspect:watch", "show a run in the browser while it goes on"),
    "methods": ("inspect:methods", "list the methods and the local adaptations"),
    "keys": ("keys:keys", "list the keys of a run: all, by a word, or a method's"),
    "doctor": ("inspect:doctor", "check this machine, a run or a federation"),
    "data": ("data:app", "data sets: list, get, check, show, clean"),
    "flower": ("flower:app", "a federation of real machines"),
}
"""Every command: where it is, and its line in the help. Its module is imported when it is called."""


class _Commands(typer.core.TyperGroup):
    """A group that imports a command's module when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; one that is not there is answered with the nearest."""
        if cmd_name not in _COMMANDS:
            if ctx.resilient_parsing:  # a shell asks what could follow
                return None
            raise UsageError(f"there is no command '{shown(cmd_name)}'{nearest(cmd_name, _COMMANDS)}")
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        target = getattr(import_module(f"fedscal.cli.{module}"), name)
        if isinstance(target, typer.Typer):
            return typer.main.get_group(target)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(cmd_name, epilog=EPILOGS.get(cmd_name))(target)
        return typer.main.get_command(alone)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table's lines."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # of all commands: they inherit it
    help="Adapt an image classifier to sites whose data look different, are unlabelled, and may not leave.",
)


def _say_version(given: bool) -> None:
    if given:
        typer.echo(f"fedscal {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before a command."""


def _permit(given: bool) -> bool:
    if given:
        allow_code()
    return given


AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        callback=_permit,
        help="Import the modules that plugins= and model=package.module:factory name. Trust them first.",
    ),
]
"""The one way by which a command may run code of a model or a plugin."""


def print_error(text: str) -> None:
    """Print what went wrong, on stderr and as it is."""
    sys.stderr.write(text + "\n")


_REARM = 2.0
"""Seconds after which an interrupt that was lost is raised again."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM; not KeyboardInterrupt, which typer would swallow without a word."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number  # what a shell says of a program that a signal ended
        self.advice = "Repeat the command to go on."


@contextmanager
def going_on_by(advice: Callable[[], str]) -> Iterator[None]:
    """Say how to go on if a signal ends what is done here; asked then, and not said if it is empty."""
    try:
        yield
    except Interrupted as signalled:
        signalled.advice = advice() or signalled.advice
        raise


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    # An exception that comes up inside a destructor or a library's import is lost: it is raised again.
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, lambda _, frame: _stop(number, frame))
        signal.setitimer(signal.ITIMER_REAL, _REARM)
    raise Interrupted(number)


def _listen() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)


def _disarm() -> None:
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


def _complete_as_click_does() -> None:
    """Understand ``bash_complete``, the order of click's documentation, beside typer's ``complete_bash``."""
    shell, _, instruction = os.environ.get(_COMPLETE, "").partition("_")
    if instruction in ("source", "complete"):
        os.environ[_COMPLETE] = f"{instruction}_{shell}"


def _explained(error: click.ClickException) -> str:
    """Say what is wrong with a command line; a key that was given as an option is shown as a key."""
    from fedscal.cli.mistakes import as_key

    text = io.StringIO()
    error.show(text)
    return as_key(error, sys.argv[1:]) or shortened(text.getvalue().rstrip())


def main() -> None:
    """Run a command; every foreseen trouble is one or two lines and an exit code of its own."""
    _listen()
    _complete_as_click_does()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without unicode still shows the result
    try:
        sys.exit(app(standalone_mode=False))
    except FedscalError as error:
        print_error(f"error: {error}")
        sys.exit(error.exit_code)
    except _CommandLineError as error:  # a command line that click cannot read
        print_error(_explained(error))
        sys.exit(error.exit_code)
    except Interrupted as signalled:
        _disarm()
        print_error(f"interrupted. {signalled.advice}")
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
