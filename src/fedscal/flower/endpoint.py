"""An endpoint on 127.0.0.1 for the processes of one machine: its port, certificate and secrets.

SuperLink and SuperNode each listen on loopback. TLS keeps other users of the machine from posing as
them, the secrets keep others from giving them orders. All of it is made anew at every start.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from fedscal.core import files
from fedscal.core.documents import read_json
from fedscal.core.errors import UsageError
from fedscal.core.extras import from_extra

HOST = "127.0.0.1"
_DAYS = 3650


@dataclass(frozen=True)
class Endpoint:
    """Where a program of this machine listens, and what its peers need to speak to it.

    Attributes:
        folder: holds certificates and secrets; readable by its owner only.
        port: on 127.0.0.1.
    """

    folder: Path
    port: int

    @classmethod
    def create(cls, folder: Path, port: int = 0) -> Endpoint:
        """Make certificate and secrets anew; a port of 0 means any that is free."""
        with from_extra("flower", "fedscal flower"):
            from fedscal.flower.certificates import make_certificates
        shutil.rmtree(folder, ignore_errors=True)
        os.chmod(files.make_dir(folder), 0o700)
        made = cls(folder.resolve(), port or free_port())
        make_certificates(folder, [HOST], [], _DAYS)
        for secret in (made.executor_secret, made.operator_secret):
            files.write_bytes(secret, secrets.token_hex(32).encode())
        files.write_json(folder / "endpoint.json", {"port": made.port})
        return made

    @classmethod
    def read(cls, folder: Path) -> Endpoint:
        """Return the endpoint of a server that was started with this folder."""
        try:
            return cls(folder.resolve(), int(read_json(folder / "endpoint.json")["port"]))
        except PermissionError as error:
            raise UsageError(f"{folder} belongs to another user: ask who runs the server.") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"no server was started with {folder.parent}: start 'fedscal flower server' on this machine, "
                "or give its --state."
            ) from error

    @property
    def address(self) -> str:
        """``127.0.0.1:port``."""
        return f"{HOST}:{self.port}"

    @property
    def ca(self) -> Path:
        """The authority of its certificate."""
        return self.folder / "ca.crt"

    @property
    def executor_secret(self) -> Path:
        """Who knows it may take tasks and execute them."""
        return self.folder / "executor.secret"

    @property
    def operator_secret(self) -> Path:
        """Who knows it may start and stop runs and register sites."""
        return self.folder / "operator.secret"

    def tls_flags(self) -> list[str]:
        """Return the flags by which Flower's programs listen here."""
        own = self.folder / "server.crt", self.folder / "server.key"
        files_ = ["--ssl-ca-certfile", self.ca, "--ssl-certfile", own[0], "--ssl-keyfile", own[1]]
        where = ["--host", HOST, "--port", self.port, "--superexec-auth-secret-file", self.executor_secret]
        return [str(word) for word in ["--isolation", "process", *where, *files_]]

    def open(self) -> bool:
        """Whether somebody listens there."""
        return reachable(HOST, self.port)


def reachable(host: str, port: int) -> bool:
    """Whether somebody listens at an address."""
    try:
        socket.create_connection((host, port), 2).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
