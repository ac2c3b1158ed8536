"""The parts of a federation as commands: a server, a site, and a run.

A server is SuperLink on loopback, an executor of its runs, and a front for the sites; a site is a
SuperNode and an executor that holds the images. Each part is started again when it ends, and all of
them end with the command that started them.
"""

from __future__ import annotations

import math
import shlex
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedscal.core import files
from fedscal.core.errors import FedscalError, UsageError
from fedscal.core.extras import from_extra
from fedscal.data.remote import site_name
from fedscal.experiment.spec import RunSpec
from fedscal.flower.endpoint import HOST, Endpoint, reachable
from fedscal.flower.processes import ENDED, SITE_FILE, Part, ProgramEnded, environment, keep, kept, wait_for

if TYPE_CHECKING:
    from fedscal.flower.control import Control

_START = 300.0
_LOOK, _DEAF = 5.0, 60.0
"""Seconds between two looks at a node's pulse, and without one until it is taken for deaf."""
_SERVER_FILES = {"certificate": "server.crt", "key": "server.key"}
Say = Callable[[str], None]
Front = Literal["built-in", "nginx"]


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

    def refuse_impostor(self) -> None:
        """Refuse a server that the authority does not vouch for; one that is silent may come yet."""
        context = ssl.create_default_context(cafile=str(self.authority) if self.authority else None)
        try:
            with socket.create_connection((self.host, self.port), 5) as connection:
                context.wrap_socket(connection, server_hostname=self.host).close()
        except ssl.SSLCertVerificationError as error:
            if self.authority:
                raise UsageError(
                    f"the certificate of {self} is refused by {self.authority}: {error.verify_message}. "
                    "Take ca.crt from this server, look at its names and dates, and at both clocks."
                ) from error
        except OSError:
            return
        if not self.authority:
            raise UsageError(f"the server {self} speaks TLS: give --key FILE in place of --insecure.")


def serve(keys: Path | None, host: str, port: int, state: Path, say: Say, front: Front = "built-in") -> None:
    """Run the server until it is ended: SuperLink on loopback, who executes its runs, and a front.

    Args:
        keys: what ``fedscal flower keys`` made; None: in the clear, and any site may join.
        host: the address that the front listens on.
        port: the port that the front listens on.
        state: where the server keeps its database and its secrets.
        say: who is told how it goes.
        front: what stands before SuperLink.
    """
    with from_extra("flower", "fedscal flower server"):
        from fedscal.flower.control import Control, refuse_open_control
    address = Address("127.0.0.1" if host == "0.0.0.0" else host, port, keys / "ca.crt" if keys else None)
    if address.open():
        raise UsageError(f"port {port} of {address.host} is in use: end what listens there, or give --port.")
    with files.only_process(state), kept() as parts:
        endpoint, env = Endpoint.create(local(state)), environment(state / "flwr")
        parts.append(Part(_superlink(endpoint, state, signed=keys is not None), env))
        wait_for(endpoint.open, parts[0].start(say), _START)
        refuse_open_control(endpoint)
        with Control(endpoint) as control:
            names = register(keys, control) if keys else []
        parts += [
            Part(_module("executor", "server", endpoint.folder), env),
            Part(_FRONTS[front](host, port, keys, endpoint), env),
        ]
        for part in parts[1:]:
            running = part.start(say)
        wait_for(address.open, running, _START)
        say(f"server ready at {host}:{port}" + (f", keys of {', '.join(names)}" if names else ""))
        keep(parts, say)


def local(state: Path) -> Path:
    """Return where a server or a site keeps what only its own processes may know."""
    return state / "local"


def _superlink(endpoint: Endpoint, state: Path, signed: bool) -> list[str]:
    argv = _module("superlink", endpoint.operator_secret, *endpoint.tls_flags())
    argv += ["--database", str(state.resolve() / "superlink.db"), "--disable-runtime-dependency-installation"]
    return [*argv, *(["--enable-supernode-auth"] if signed else [])]


def _module(name: str, *words: object) -> list[str]:
    return [sys.executable, "-m", f"fedscal.flower.{name}", *map(str, words)]


def _built_in_front(host: str, port: int, keys: Path | None, endpoint: Endpoint) -> list[str]:
    path = endpoint.folder / "front.json"
    own = {name: str((keys / file).resolve()) if keys else None for name, file in _SERVER_FILES.items()}
    files.write_json(path, {"host": host, "port": port, **own, "endpoint": str(endpoint.folder)})
    return _module("front", path)


def _nginx(host: str, port: int, keys: Path | None, endpoint: Endpoint) -> list[str]:
    with from_extra("flower", "--front nginx"):
        from fedscal.flower.nginx import nginx_config
    if not shutil.which("nginx"):
        raise UsageError("nginx is not installed: install it, or leave --front away.")
    path = endpoint.folder / "nginx.conf"
    files.write_bytes(path, nginx_config(host, port, keys, endpoint).encode())
    # nginx would outlive a server that was killed; util-linux ends it then.
    return ["setpriv", "--pdeathsig", "TERM", "nginx", "-c", str(path), "-g", "daemon off;"]


_FRONTS: dict[Front, Callable[[str, int, Path | None, Endpoint], list[str]]] = {
    "built-in": _built_in_front,
    "nginx": _nginx,
}


def register(keys: Path, control: Control) -> list[str]:
    """Register every public key under its site's name; those that the database has are left as they are."""
    names = sorted(path.parent.name for path in keys.glob("*/key.pub"))
    for name in names:
        control.register(name, keys / name / "key.pub")
    return names


def describe_site(
    name: str, data: Path | None, keys: Mapping[str, Any], state: Path, apps: Sequence[str] = ()
) -> RunSpec:
    """Write down what a site is, for the processes that work for it; return its part of a run's spec."""
    own = dict(keys)
    if data is not None:
        if not data.is_dir():
            raise UsageError(f"{data} is not a folder.")
        # A folder of one client, named like the site: the same layout as clients=DIR on one machine.
        link = files.make_dir(state / "clients") / site_name(name)
        link.unlink(missing_ok=True)
        link.symlink_to(data.resolve(), target_is_directory=True)
        own["clients"] = str((state / "clients").resolve())
    files.write_json(state / SITE_FILE, {"name": site_name(name), "keys": own, "apps": list(apps)})
    return RunSpec.make(**own)


def join(state: Path, address: Address, key: Path | None, port: int, retry: float, say: Say) -> None:
    """Run a site until it is ended: a SuperNode without images, and the executor that holds them.

    A server that does not admit the site, or not yet, is asked again every ``retry`` seconds; 0: never.
    """
    address.refuse_impostor()
    if port and reachable(HOST, port):
        raise UsageError(f"port {port} of this machine is in use: give another --port, or none.")
    with files.only_process(state), kept() as parts:
        endpoint = Endpoint.create(local(state), port)
        pulse = Pulse(endpoint.folder / "pulse", address)
        node = _supernode(state, pulse.path, address, key, endpoint)
        lives = None if retry else 1
        parts += [
            Part(node, environment(state / "flwr"), retry, lives, steady=math.inf, healthy=pulse.felt),
            Part(_module("executor", "site", state, endpoint.folder)),
        ]
        for part in parts:
            part.start(say)
        say(f"site started, server {address}; its images are held by a process of their own")
        keep(parts, say)


def _supernode(state: Path, pulse: Path, address: Address, key: Path | None, endpoint: Endpoint) -> list[str]:
    argv = _module("supernode", state, pulse, "--superlink", address, *endpoint.tls_flags())
    argv += ["--root-certificates", str(address.authority)] if address.authority else ["--insecure"]
    return [*argv, *(["--auth-supernode-private-key", str(key)] if key else [])]


@dataclass
class Pulse:
    """Whether a SuperNode and its server hear each other: the node touches a file at every heartbeat.

    Attributes:
        path: that file.
        address: the server; while nobody listens there, the node's silence is not its fault.
    """

    path: Path
    address: Address
    _next_look: float = 0.0
    _deaf_since: float = math.inf

    def felt(self) -> bool:
        """Whether the node is not known to be deaf."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK
            deaf = self._silent() and self.address.open()
            self._deaf_since = min(self._deaf_since, now) if deaf else math.inf
        return now - self._deaf_since < _DEAF

    def _silent(self) -> bool:
        try:
            return time.time() - self.path.stat().st_mtime > _DEAF
        except OSError:
            return False


def run(
    endpoint: Endpoint, keys: Mapping[str, Any], out: Path, limits: Mapping[str, Any], resume: bool, say: Say
) -> None:
    """Run a federation to its end; its errors come back with their exit codes."""
    with from_extra("flower", "fedscal flower run"):
        from fedscal.flower.control import Control
    if not endpoint.open():
        raise UsageError(f"the server of {endpoint.folder.parent} does not run: fedscal flower server")
    config = {"keys": in_words(keys), "out": str(out.resolve()), "resume": resume, **limits}
    with Control(endpoint) as control:
        before = control.in_progress(out) if resume else None
        if before is not None:  # the command that started it was killed, not the run
            say(f"run {before} is going on; following it")
            last = _follow(control, before, say)
        if before is None or not (last or (out / "summary.json").exists()):
            last = _follow(control, control.start(config), say)
    if last:
        raise told(last)
    if not (out / "summary.json").exists():
        raise ProgramEnded(
            f"the run ended without a result; go on with it: fedscal flower run --resume {out}"
        )


def _follow(control: Control, number: int, say: Say) -> str:
    """Pass on what a run says until it ends; return how it says that it failed."""
    ear = _Ear(say)
    try:
        for line in control.lines(number):
            ear(line)
    except BaseException:  # who interrupts it does not want the server to go on unseen
        control.stop(number)
        raise
    return ear.last


def in_words(keys: Mapping[str, Any]) -> str:
    """Return keys as one would type them: Flower's configuration has no tables."""
    return shlex.join(f"{name}={value}" for name, value in keys.items())


@dataclass
class _Ear:
    """Hears what a run says: passes our lines on, and keeps how it ended."""

    say: Say
    last: str = ""

    def __call__(self, line: str) -> None:
        if line.startswith(ENDED):
            self.last = line
        elif line.startswith("fedscal: "):
            self.say(line.removeprefix("fedscal: "))


def told(line: str) -> FedscalError:
    """Return the error that a run's last words tell of."""
    number, _, text = line.removeprefix(ENDED).strip().partition(": ")
    kinds: Sequence[type[FedscalError]] = FedscalError.__subclasses__()
    kind = next((kind for kind in kinds if str(kind.exit_code) == number), ProgramEnded)
    return kind(text)
