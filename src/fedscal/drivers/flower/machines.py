"""The three parts of a federation as commands: the server's SuperLink, a site's SuperNode, and a run."""

from __future__ import annotations

import contextlib
import shlex
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fedscal import files
from fedscal.data.elsewhere import site_name
from fedscal.drivers.flower.programs import (
    ENDED,
    SITE_FILE,
    ProgramEnded,
    Running,
    environment,
    program,
    together,
    until_one_ends,
    wait_for,
)
from fedscal.errors import FedscalError, UsageError
from fedscal.spec import RunSpec, dump_toml

_CONNECTION = "fedscal"
_START = 300.0
_KNOWN = "already in use"
"""What Flower says of a key that is registered."""
Say = Callable[[str], None]


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
        try:
            socket.create_connection((self.host, self.port), 2).close()
        except OSError:
            return False
        return True

    def refuse_impostor(self) -> None:
        """Refuse a server that the authority does not vouch for; one that is silent may come yet."""
        if self.authority is None:
            return
        context = ssl.create_default_context(cafile=str(self.authority))
        try:
            with socket.create_connection((self.host, self.port), 5) as connection:
                context.wrap_socket(connection, server_hostname=self.host).close()
        except ssl.SSLCertVerificationError as error:
            raise UsageError(
                f"the certificate of {self} is refused by {self.authority}: {error.verify_message}. "
                "Take ca.crt from this server, look at its names and dates, and at both clocks."
            ) from error
        except OSError:
            return


def connection(home: Path, address: Address) -> dict[str, str]:
    """Write Flower's configuration for a server; return the environment that goes with it."""
    how: dict[str, Any] = (
        {"root-certificates": str(address.authority.resolve())} if address.authority else {"insecure": True}
    )
    text = f'[superlink]\ndefault = "{_CONNECTION}"\n\n[superlink.{_CONNECTION}]\n'
    files.write_bytes(home / "config.toml", (text + dump_toml({"address": str(address), **how})).encode())
    return environment(home)


def serve(keys: Path | None, host: str, port: int, state: Path, say: Say) -> None:
    """Run the server until it is ended: SuperLink, with every site of the keys' folder registered."""
    address = Address("127.0.0.1" if host == "0.0.0.0" else host, port, keys / "ca.crt" if keys else None)
    if address.open():
        raise UsageError(f"port {port} of {address.host} is in use: end what listens there, or give --port.")
    env = connection(files.make_dir(state) / "flwr", address)
    argv = [program("flower-superlink"), "--host", host, "--port", str(port)]
    argv += ["--database", str(state.resolve() / "superlink.db"), "--disable-runtime-dependency-installation"]
    if keys:
        argv += ["--ssl-ca-certfile", str(keys / "ca.crt"), "--ssl-certfile", str(keys / "server.crt")]
        argv += ["--ssl-keyfile", str(keys / "server.key"), "--enable-supernode-auth"]
    else:
        argv.append("--insecure")
    with together() as programs:
        programs.append(_start(argv, env, say))
        wait_for(address.open, programs[0], _START)
        names = register(keys, env) if keys else []
        say(f"server ready at {host}:{port}" + (f", keys of {', '.join(names)}" if names else ""))
        until_one_ends(programs)


def _start(argv: Sequence[str], env: Mapping[str, str] | None, say: Say, heard: Say | None = None) -> Running:
    """Start a program and say which; its words go to ``heard``, or are said too."""
    say(f"started: {shlex.join(argv)}")
    return Running(argv, env, heard or say)


def register(keys: Path, env: Mapping[str, str]) -> list[str]:
    """Register every public key under its site's name; those that the database has are left as they are."""
    names = sorted(path.parent.name for path in keys.glob("*/key.pub"))
    for name in names:
        try:
            _flwr(env, "supernode", "register", str(keys / name / "key.pub"), _CONNECTION, "--name", name)
        except ProgramEnded as error:
            if _KNOWN not in str(error):
                raise
    return names


def _flwr(env: Mapping[str, str], *words: str) -> None:
    done = subprocess.run(
        [program("flwr"), *words], env=dict(env), capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise ProgramEnded(
            f"flwr {' '.join(words[:2])} failed: {(done.stderr or done.stdout).strip()[-300:]}"
        )


def describe_site(name: str, data: Path | None, keys: Mapping[str, Any], state: Path) -> RunSpec:
    """Write down what a site is, for the process that holds its images; return its part of a run's spec."""
    own = dict(keys)
    if data is not None:
        if not data.is_dir():
            raise UsageError(f"{data} is not a folder.")
        # A folder of one client, named like the site: the same layout as clients=DIR on one machine.
        link = files.make_dir(state / "clients") / site_name(name)
        link.unlink(missing_ok=True)
        link.symlink_to(data.resolve(), target_is_directory=True)
        own["clients"] = str((state / "clients").resolve())
    files.write_json(state / SITE_FILE, {"name": site_name(name), "keys": own})
    return RunSpec.make(**own)


def join(state: Path, address: Address, key: Path | None, port: int, retry: float, say: Say) -> None:
    """Run a site until it is ended: the process that holds its images, and a SuperNode without them.

    A server that does not admit the site, or not yet, is asked again every ``retry`` seconds; 0: never.
    """
    address.refuse_impostor()
    with tempfile.TemporaryDirectory(prefix="fedscal-") as folder, together() as programs:
        door = Path(folder) / "socket"
        holder = [sys.executable, "-m", "fedscal.drivers.flower.resident", str(state), str(door)]
        programs.append(_start(holder, None, say))
        wait_for(door.exists, programs[0], _START)
        argv = _supernode(address, key, port, door)
        say(f"site started, server {address}; its images are held by a process of their own")
        while True:
            programs[1:] = [_start(argv, environment(state / "flwr"), say)]
            try:
                until_one_ends(programs)
            except ProgramEnded as end:
                if not retry or not programs[0].running:
                    raise
                say(f"{end} Trying again in {retry:g} s.")
                time.sleep(retry)


def _supernode(address: Address, key: Path | None, port: int, door: Path) -> list[str]:
    argv = [program("flower-supernode"), "--superlink", str(address), "--port", str(port)]
    argv += ["--node-config", f'socket="{door}"']
    argv += ["--root-certificates", str(address.authority)] if address.authority else ["--insecure"]
    return [*argv, *(["--auth-supernode-private-key", str(key)] if key else [])]


def run(
    address: Address, keys: Mapping[str, Any], out: Path, limits: Mapping[str, Any], resume: bool, say: Say
) -> None:
    """Run a federation to its end; its errors come back with their exit codes."""
    ear = _Ear(say)
    address.refuse_impostor()
    if not address.open():
        raise UsageError(f"nobody listens at {address}: start 'fedscal flower server' there.")
    with tempfile.TemporaryDirectory(prefix="fedscal-") as folder, together() as programs:
        env = connection(Path(folder) / "flwr", address)
        config = {"keys": in_words(keys), "out": str(out.resolve()), "resume": resume, **limits}
        files.write_bytes(Path(folder) / "run.toml", dump_toml(config).encode())
        with resources.as_file(resources.files("fedscal.drivers.flower") / "app") as app:
            words = ["run", str(app), _CONNECTION, "--stream", "--run-config", f"{folder}/run.toml"]
            programs.append(_start([program("flwr"), *words], env, say, ear))
            try:
                code = programs[0].wait()
            except BaseException:  # who interrupts it does not want the server to go on unseen
                with contextlib.suppress(FedscalError, subprocess.TimeoutExpired):
                    _flwr(env, "stop", ear.number, _CONNECTION)
                raise
    if ear.last:
        raise told(ear.last)
    if code or not (out / "summary.json").exists():
        raise ProgramEnded(f"the run ended without a result; its log: flwr log, on the server {address}.")


def in_words(keys: Mapping[str, Any]) -> str:
    """Return keys as one would type them: Flower's configuration has no tables."""
    return shlex.join(f"{name}={value}" for name, value in keys.items())


@dataclass
class _Ear:
    """Hears what ``flwr run`` says: passes our lines on, keeps the run's number and how it ended."""

    say: Say
    number: str = ""
    last: str = ""

    def __call__(self, line: str) -> None:
        if line.startswith(ENDED):
            self.last = line
        elif line.startswith("fedscal: "):
            self.say(line.removeprefix("fedscal: "))
        elif "started run " in line:
            self.number = line.rpartition(" ")[2]


def told(line: str) -> FedscalError:
    """Return the error that a run's last words tell of."""
    number, _, text = line.removeprefix(ENDED).strip().partition(": ")
    kinds: Sequence[type[FedscalError]] = FedscalError.__subclasses__()
    kind = next((kind for kind in kinds if str(kind.exit_code) == number), ProgramEnded)
    return kind(text)
