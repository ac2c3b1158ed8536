"""``fedscal flower certs | server | site | run | app | demo``: a federation of real machines, on Flower."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from fedscal.cli import AllowCode, going_on_by, print_error
from fedscal.cli.jobs import Out, Quiet, Words, default_out, gather, resumable, show
from fedscal.cli.output import print_plain, progress
from fedscal.core import files
from fedscal.core.errors import UsageError
from fedscal.core.extras import from_extra
from fedscal.data.remote import PREFIX, site_name
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec, parse_assignments
from fedscal.flower import launch
from fedscal.flower.endpoint import Endpoint
from fedscal.flower.processes import allowed_hashes, flower_program, installed_app

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A federation of real machines, on Flower: certs, server, site, run, app, demo.",
)
Server = Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="Where the server listens.")]
Apps = Annotated[
    str,
    typer.Option(
        metavar="SHA256,...",
        help="Other apps that may run here, beside this version's: see fedscal flower app.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No TLS and no keys: anybody may read along and join. For tests.")
]
ServerState = Annotated[
    Path, typer.Option("--state", metavar="DIR", help="Where the server keeps its database and secrets.")
]
_STATE = Path("fedscal-server")
_OPEN = (
    "WARNING: --insecure: weights travel in the clear and any machine may join. "
    "Make keys: fedscal flower certs DIR --sites ..."
)


@app.command("keys", hidden=True)  # its name before
@app.command(
    short_help="make an authority, the server's certificate, keys of the sites",
    epilog="""\b
Examples:
  fedscal flower certs keys --sites a,b --host server.example.org,10.0.0.5
  fedscal flower certs keys --sites a,b,c            a third site later
""",
)
def certs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write them.")],
    sites: Annotated[str, typer.Option(metavar="a,b,c", help="The sites' names.")],
    host: Annotated[
        str, typer.Option(metavar="NAME,...", help="Names and addresses that sites reach the server by.")
    ] = "localhost,127.0.0.1",
    days: Annotated[int, typer.Option(help="How long the certificates are valid.", min=1, max=3650)] = 365,
) -> None:
    """Make an authority, the server's certificate, and a key for every site; what is there is kept."""
    with from_extra("flower", "fedscal flower certs"):
        from fedscal.flower.certificates import make_certificates
    names = [site_name(name) for name in sites.split(",")]
    for path in make_certificates(folder, host.split(","), names, days):
        print_plain(str(path))
    print_plain(
        f"Give each site its own folder, {folder}/<site>, by a safe way. ca.key and server.key stay here."
    )


@app.command(
    short_help="start the server, behind a front that lets only sites in",
    epilog="""\b
Examples:
  fedscal flower server --keys keys --port 8000
  fedscal flower server --keys keys --state /var/lib/fedscal --front nginx
""",
)
def server(
    keys: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What 'fedscal flower certs' made.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=1, max=65535)] = 8000,
    state: ServerState = _STATE,
    front: Annotated[
        str, typer.Option(metavar="NAME", help="What stands before SuperLink: built-in or nginx.")
    ] = "built-in",
    insecure: Insecure = False,
    allow_code: AllowCode = False,
) -> None:
    """Start the server: Flower's SuperLink behind a front that lets only sites in; until it is ended."""
    flower_program("flower-superlink")
    if front not in launch.FRONTS:
        raise UsageError(f"--front is built-in or nginx, not '{front[:40]}'.")
    if insecure:
        print_error(_OPEN)
    elif keys is None or not (keys / "server.key").is_file():
        raise UsageError(
            "give --keys DIR with the server's certificate: fedscal flower certs DIR --sites ..."
        )
    with going_on_by(lambda: "The server has ended; the same command starts it again."):
        launch.run_server(None if insecure else keys, host, port, state, print_plain, front)


@app.command(
    short_help="start a site, which holds its images and trains on them",
    epilog="""\b
Examples:
  fedscal flower site --server h:8000 --key a/key --data photos --model model
  fedscal doctor --keys a --server h:8000            if it does not go
""",
)
def site(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value ...]", help="The site's own keys of a run.", show_default=False),
    ] = None,
    server: Server = "",
    name: Annotated[str, typer.Option(help="The site's name; that of the key's folder if not given.")] = "",
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="The site's images.")] = None,
    model: Annotated[Path | None, typer.Option(metavar="MODEL", help="The source model.")] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="The site's key.")] = None,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The authority; ca.crt beside the key if not given.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the site keeps its memory; fedscal-site-<name>.")
    ] = None,
    port: Annotated[
        int, typer.Option(help="A port of this machine, on loopback only; 0: any.", min=0, max=65535)
    ] = 0,
    retry: Annotated[
        float, typer.Option(help="Seconds until a server that refused is asked again; 0: never.", min=0)
    ] = 20,
    apps: Apps = "",
    insecure: Insecure = False,
    allow_code: AllowCode = False,
) -> None:
    """Start a site: a process that holds its images, and Flower's SuperNode; until it is ended."""
    flower_program("flower-supernode")
    listed = [text for text in apps.split(",") if text]
    allowed_hashes(listed)  # refuses what is none
    if not insecure and (key is None or not key.is_file()):
        raise UsageError("give --key FILE, the site's key: fedscal flower certs makes it on the server.")
    if insecure:
        print_error(_OPEN)
    name = name or (key.resolve().parent.name if key else "")
    if not name or not server or model is None:
        raise UsageError("a site needs --server HOST:PORT, --model MODEL, --data DIR and a --key or --name.")
    own = {**parse_assignments(words or []), "source_model": str(model.resolve())}
    if data is None and "benchmark" not in own:
        raise UsageError("give --data DIR, the folder of the site's images.")
    authority = None if insecure or key is None else ca or key.parent / "ca.crt"
    address = launch.Address.parse(server, authority)
    state = state or Path(f"fedscal-site-{name}")
    _check(launch.describe_site(name, data, own, state, listed), name)
    with going_on_by(lambda: "The site has ended; the same command starts it again."):
        launch.run_site(state, address, None if insecure else key, port, retry, print_plain)


def _check(spec: RunSpec, name: str) -> None:
    """Decode the site's images and hold them against the model, before anybody is told that it is there."""
    from fedscal.experiment.experiment import Experiment
    from fedscal.experiment.local import Local

    with progress(quiet=False) as shown:
        layout = Local().clients(Experiment.build(spec), shown).of(name)
    print_plain(f"{name}: {len(layout.rows[name][1]):,} images")


@app.command(
    short_help="run a federation over the sites that are connected",
    epilog="""\b
Examples:
  fedscal flower run --sites a,b,c --model model --out runs/first
  fedscal flower run --sites a,b,c --model model --at-least 2 --wait 300
  fedscal flower run --resume runs/first

Keys are those of fedscal run: method=, rounds=, local_epochs=, seed= and so on; fedscal keys lists them.
""",
)
def run(
    words: Words = None,
    sites: Annotated[str, typer.Option(metavar="a,b,c", help="The sites that take part.")] = "",
    model: Annotated[Path | None, typer.Option(metavar="MODEL", help="The source model.")] = None,
    state: ServerState = _STATE,
    out: Out = None,
    resume_dir: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with the run in DIR.")
    ] = None,
    wait: Annotated[int, typer.Option(help="Seconds to wait for the sites.", min=1)] = 600,
    at_least: Annotated[
        int, typer.Option(metavar="N", help="Start with N or more of the sites after that time.", min=0)
    ] = 0,
    round_timeout: Annotated[
        int, typer.Option(help="Seconds until a site that does not answer is given up.", min=1)
    ] = 3600,
    quiet: Quiet = False,
    allow_code: AllowCode = False,
) -> None:
    """Run a federation over the sites that are connected; on the server's machine, by who started it.

    All sites that are named must be there; with --at-least, those that have come within --wait seconds are
    the run's sites, and the others have no part in it.
    """
    flower_program("flower-superlink")
    if at_least and resume_dir:
        raise UsageError("a run that is resumed goes on with its own sites: leave --at-least away.")
    given = {**gather(words), **({"source_model": str(model.resolve())} if model else {})}
    if sites:
        given["clients"] = PREFIX + sites.replace(",", "+")
    place = resume_dir
    if place is None:
        spec = RunSpec.make(**given)
        if not spec.clients.startswith(PREFIX):
            raise UsageError("give --sites a,b,c: the names of the sites that take part.")
        if at_least > len(spec.clients.split("+")):
            raise UsageError(f"--at-least {at_least}: {spec.clients.count('+') + 1} sites are named.")
        place = out or default_out(spec)
    limits = {"wait": wait, "round-timeout": round_timeout, "at-least": at_least}
    say = (lambda text: None) if quiet else print_plain
    endpoint = Endpoint.read(launch.local_folder(state))
    elsewhere = "" if state == _STATE else f" --state {shlex.quote(str(state))}"
    with resumable(place, f"fedscal flower run{elsewhere}"):
        say(f"run: {place}")
        launch.run_federation(endpoint, given, place, limits, resume_dir is not None, say)
    show(RunDirectory(place), report=True, quiet=quiet, as_json=False)


@app.command("app", short_help="print the sha256 of the Flower app that sites run")
def app_() -> None:
    """Print the sha256 of the Flower app of this version: the only one that its sites run."""
    flower_program("flower-superlink")
    print_plain(files.sha256(installed_app()))


@app.command(short_help="run a whole federation on this machine, with digits")
def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")] = Path(
        "runs/demo-flower"
    ),
    sites: Annotated[int, typer.Option(help="How many sites.", min=2, max=50)] = 3,
) -> None:
    """Run a whole federation on this machine: a server, sites with digits, two rounds."""
    flower_program("flower-superlink")
    with from_extra("flower", "fedscal flower demo"):
        from fedscal.flower.demo import demo
    if folder.exists():
        raise UsageError(f"{folder} is there already: remove it, or give another directory.")
    show(RunDirectory(demo(folder.resolve(), sites, print_plain)), report=True, quiet=False, as_json=False)
