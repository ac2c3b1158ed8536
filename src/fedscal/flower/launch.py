"""The parts of a federation as commands: a server, a site, and a run.

A server is SuperLink on loopback, an executor of its runs, and a front for the sites; a site is a
SuperNode and an executor that holds the images. Each process is started again when it ends, and all of
them end with the command that started them.
"""

from __future__ import annotations

import math
import shlex
import shutil
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedscal.core import files
from fedscal.core.errors import FedscalError, UsageError
from fedscal.core.extras import from_extra
from fedscal.core.module_command import module_command
from fedscal.core.options import Keys, Value
from fedscal.data.remote import site_name
from fedscal.experiment.spec import RunSpec
from fedscal.flower.endpoint import HOST, Endpoint, reachable
from fedscal.flower.output import Output, Say
from fedscal.flower.presence import Presence
from fedscal.flower.processes import (
    ENDED,
    ProcessEnded,
    SiteDescription,
    SupervisedProcess,
    environment,
    supervise,
    supervised,
    wait_for,
)

if TYPE_CHECKING:
    from fedscal.flower.control import Control

_START = 300.0
_CHECK, _LOST = 5.0, 60.0
"""Seconds between two checks of a node's heartbeat, and without one until its connection is lost."""
_SERVER_FILES = {"certificate": "server.crt", "key": "server.key"}


@dataclass(frozen=True)
class Address:
    """Where a server listens, and the authority that signs its certificate; None: in the clear."""

    host: str
    port: int
    authority: Path | None

    @classmethod
    def parse(cls, text: str, authority: Path | None) -> Address:
        """Read ``host:port``."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UsageError(f"'{text}' is not host:port")
        if authority is not None and not authority.is_file():
            raise UsageError(f"{authority} is not there: copy ca.crt from the server.")
        return cls(host, int(port), authority)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def open(self) -> bool:
        """Whether somebody listens there."""
        return reachable(self.host, self.port)

    def verify_certificate(self) -> None:
        """Refuse a server whose certificate the authority did not sign; an unreachable one is no error."""
        context = ssl.create_default_context(cafile=str(self.authority) if self.authority else None)
        try:
            with socket.create_connection((self.host, self.port), 5) as connection:
                context.wrap_socket(connection, server_hostname=self.host).close()
        except ssl.SSLCertVerificationError as error:
            if self.authority:
                raise UsageError(
                    f"the certificate of {self} is refused by {self.authority}: {error.verify_message}. "
                    "Take ca.crt from this server, check its names and dates, and both clocks."
                ) from error
        except OSError:
            return
        if not self.authority:
            raise UsageError(f"the server {self} speaks TLS: give --key FILE in place of --insecure.")


def run_server(
    keys: Path | None, host: str, port: int, state: Path, say: Say, front: str = "built-in"
) -> None:
    """Run the server until it is ended: SuperLink on loopback, who executes its runs, and a front.

    ``keys`` are what ``fedscal flower certs`` made; None: in the clear, and any site may join. The front
    listens at host and port; ``state`` is where the server keeps its database and its secrets.
    """
    with from_extra("flower", "fedscal flower server"):
        from fedscal.flower.control import Control, online, refuse_open_control
    address = Address("127.0.0.1" if host == "0.0.0.0" else host, port, keys / "ca.crt" if keys else None)
    if address.open():
        raise UsageError(f"port {port} of {address.host} is in use: end what listens there, or give --port.")
    with files.only_process(state), supervised() as parts:
        output = Output(say, state / "server.log")
        endpoint, env = Endpoint.create(local_folder(state)), environment(state / "flwr")
        parts.append(SupervisedProcess(_superlink(endpoint, state, signed=keys is not None), env))
        wait_for(endpoint.open, parts[0].start(output), _START)
        refuse_open_control(endpoint)
        with Control(endpoint) as control:
            names = control.register_all(keys) if keys else []
        parts += [
            SupervisedProcess(module_command("fedscal.flower.executor", "server", endpoint.folder), env),
            SupervisedProcess(FRONTS[front](host, port, keys, endpoint), env),
        ]
        for part in parts[1:]:
            running = part.start(output)
        wait_for(address.open, running, _START)
        output.say(f"server ready at {host}:{port}" + (f", keys of {', '.join(names)}" if names else ""))
        supervise(parts, output, Presence(names, lambda: online(endpoint), output.say).look)


def local_folder(state: Path) -> Path:
    """Return the folder of what only the processes of a server or of a site may know."""
    return state / "local"


def _superlink(endpoint: Endpoint, state: Path, signed: bool) -> list[str]:
    argv = module_command("fedscal.flower.superlink", endpoint.operator_secret, *endpoint.tls_flags())
    argv += ["--database", str(state.resolve() / "superlink.db"), "--disable-runtime-dependency-installation"]
    return [*argv, *(["--enable-supernode-auth"] if signed else [])]


def _built_in_front(host: str, port: int, keys: Path | None, endpoint: Endpoint) -> list[str]:
    path = endpoint.folder / "front.json"
    own = {name: str((keys / file).resolve()) if keys else None for name, file in _SERVER_FILES.items()}
    files.write_json(path, {"host": host, "port": port, **own, "endpoint": str(endpoint.folder)})
    return module_command("fedscal.flower.front", path)


def _nginx(host: str, port: int, keys: Path | None, endpoint: Endpoint) -> list[str]:
    with from_extra("flower", "--front nginx"):
        from fedscal.flower.front import nginx_config
    if not shutil.which("nginx"):
        raise UsageError("nginx is not installed: install it, or leave --front away.")
    path = endpoint.folder / "nginx.conf"
    files.write_bytes(path, nginx_config(host, port, keys, endpoint).encode())
    # nginx would outlive a server that was killed; util-linux ends it then.
    return ["setpriv", "--pdeathsig", "TERM", "nginx", "-c", str(path), "-g", "daemon off;"]


FRONTS = {"built-in": _built_in_front, "nginx": _nginx}


def describe_site(
    name: str, data: Path | None, keys: Mapping[str, Value], state: Path, apps: Sequence[str] = ()
) -> RunSpec:
    """Write the description of a site, for its processes; return its part of a run's spec."""
    own = dict(keys)
    if data is not None:
        if not data.is_dir():
            raise UsageError(files.fault(data, "folder", "is not a folder."))
        # A folder of one client, named like the site: the same layout as clients=DIR on one machine.
        link = files.make_dir(state / "clients") / site_name(name)
        link.unlink(missing_ok=True)
        link.symlink_to(data.resolve(), target_is_directory=True)
        own["clients"] = str((state / "clients").resolve())
    SiteDescription(site_name(name), own, apps).write(state)
    return RunSpec.make(**own)


def run_site(state: Path, address: Address, key: Path | None, port: int, retry: float, say: Say) -> None:
    """Run a site until it is ended: a SuperNode without images, and the executor that holds them.

    A server that does not admit the site, or not yet, is asked again every ``retry`` seconds; 0: never.
    """
    address.verify_certificate()
    if port and reachable(HOST, port):
        raise UsageError(f"port {port} of this machine is in use: give another --port, or none.")
    with files.only_process(state), supervised() as parts:
        output = Output(say, state / "site.log")
        endpoint = Endpoint.create(local_folder(state), port)
        heartbeat = Heartbeat(endpoint.folder / "heartbeat", address)
        node = _supernode(state, heartbeat.path, address, key, endpoint)
        attempts = None if retry else 1
        parts += [
            SupervisedProcess(
                node, environment(state / "flwr"), retry, attempts, stable=math.inf, healthy=heartbeat.alive
            ),
            SupervisedProcess(module_command("fedscal.flower.executor", "site", state, endpoint.folder)),
        ]
        for part in parts:
            part.start(output)
        output.say(f"site started; the server is {address}")
        supervise(parts, output)


def _supernode(
    state: Path, heartbeat: Path, address: Address, key: Path | None, endpoint: Endpoint
) -> list[str]:
    argv = module_command(
        "fedscal.flower.supernode", state, heartbeat, "--superlink", address, *endpoint.tls_flags()
    )
    argv += ["--root-certificates", str(address.authority)] if address.authority else ["--insecure"]
    return [*argv, *(["--auth-supernode-private-key", str(key)] if key else [])]


@dataclass
class Heartbeat:
    """Whether a SuperNode is connected to its server: the node touches a file at every heartbeat.

    Attributes:
        path: that file.
        address: the server; while nobody listens there, a node is not to blame.
    """

    path: Path
    address: Address
    _next_check: float = 0.0
    _lost_since: float = math.inf

    def alive(self) -> bool:
        """Whether the node is not known to have lost its connection."""
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + _CHECK
            lost = self._missed() and self.address.open()
            self._lost_since = min(self._lost_since, now) if lost else math.inf
        return now - self._lost_since < _LOST

    def _missed(self) -> bool:
        try:
            return time.time() - self.path.stat().st_mtime > _LOST
        except OSError:
            return False


def run_federation(
    endpoint: Endpoint, keys: Keys, out: Path, limits: Mapping[str, int], resume: bool, say: Say
) -> None:
    """Run a federation to its end; its errors come back with their exit codes."""
    with from_extra("flower", "fedscal flower run"):
        from fedscal.flower.control import Control
    if not endpoint.open():
        raise UsageError(f"the server of {endpoint.folder.parent} does not run: fedscal flower server")
    output = Output(say, endpoint.folder.parent / "run.log")
    config: dict[str, Value] = {
        "keys": format_assignments(keys),
        "out": str(out.resolve()),
        "resume": resume,
        **limits,
    }
    with Control(endpoint) as control:
        before = control.in_progress(out) if resume else None
        if before is not None:  # the command that started it was killed, not the run
            output.say("the run is going on; following it")
            last = _follow(control, before, output)
        if before is None or not (last or (out / "summary.json").exists()):
            last = _follow(control, control.start(config), output)
    if last:
        raise parse_error(last)
    if not (out / "summary.json").exists():
        raise ProcessEnded(
            f"the run ended without a result; go on with it: fedscal flower run --resume {out}"
        )


def _follow(control: Control, number: int, output: Output) -> str:
    """Pass on the lines of a run until it ends; return the line by which it reports a failure."""
    failure = ""
    try:
        for line in control.lines(number):
            output.pass_on(line)
            if line.startswith(ENDED):
                failure = line
    except BaseException:  # who interrupts it does not want the server to go on unseen
        control.stop(number)
        raise
    return failure


def format_assignments(keys: Keys) -> str:
    """Return options as one would type them: Flower's configuration has no tables."""
    return shlex.join(f"{name}={value}" for name, value in keys.items())


def parse_error(line: str) -> FedscalError:
    """Return the error that the last line of a run reports."""
    number, _, text = line.removeprefix(ENDED).strip().partition(": ")
    kinds: Sequence[type[FedscalError]] = FedscalError.__subclasses__()
    kind = next((kind for kind in kinds if str(kind.exit_code) == number), ProcessEnded)
    return kind(text)
