"""The operator's side of a server, over loopback: sites are registered, runs started, followed, stopped."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.constant import Status
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
)
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from fedscal.core import files
from fedscal.core.errors import UsageError
from fedscal.core.options import Value
from fedscal.flower.endpoint import Endpoint
from fedscal.flower.processes import ProcessEnded, installed_app
from fedscal.flower.superlink import SECRET_HEADER

_KNOWN = "already in use"
"""Flower's message about a key that is registered."""
RETURN = 120.0
"""Seconds within which a SuperLink that was started again streams the log of a run again."""


class Control:
    """A connection to the SuperLink of this machine, with the operator's rights."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint, self._secret = endpoint, endpoint.operator_secret.read_text()
        self._client = ControlHttpClient.from_server_address(
            endpoint.address, False, endpoint.ca.read_bytes(), interceptors=[self]
        )

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Show the operator's secret with every request."""
        context.request.headers[SECRET_HEADER] = self._secret
        return call_next(context)

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def register_all(self, keys: Path) -> list[str]:
        """Register every public key under its site's name, unless it is known; return the names."""
        names = sorted(path.parent.name for path in keys.glob("*/key.pub"))
        for name in names:
            self._register(name, keys / name / "key.pub")
        return names

    def _register(self, name: str, public_key: Path) -> None:
        key = load_ssh_public_key(public_key.read_bytes())
        if not isinstance(key, EllipticCurvePublicKey):
            raise UsageError(f"{public_key} is not a key that 'fedscal flower certs' made.")
        try:
            self._client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name))
        except httpx.HTTPStatusError as error:
            if _KNOWN not in error.response.text:
                raise ProcessEnded(f"{name} cannot be registered: {_reason(error)}") from error

    def online(self) -> list[str]:
        """Return the names of the sites that are connected."""
        nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [node.name for node in nodes if node.status == NodeStatus.ONLINE]

    def start(self, config: Mapping[str, Value]) -> int:
        """Start a run of the installed app; return its number."""
        fab = Fab(files.sha256(installed_app()), installed_app(), {})
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=user_config_to_proto(dict(config)))
        try:
            answer = self._client.StartRun(request)
        except httpx.HTTPError as error:
            raise ProcessEnded(f"the server does not start a run: {_reason(error)}") from error
        if not answer.HasField("run_id"):
            raise ProcessEnded("the server does not start a run; its log says why.")
        return int(answer.run_id)

    def in_progress(self, out: Path) -> int | None:
        """Return the number of the run that is writing to a directory, if there is one."""
        runs = self._client.ListRuns(ListRunsRequest()).run_dict
        going_on = [run for run in runs.values() if run.status.status != Status.FINISHED]
        here = [run.run_id for run in going_on if run.override_config["out"].string == str(out.resolve())]
        return int(here[0]) if here else None

    def lines(self, run: int) -> Iterator[str]:
        """Yield the log of a run until it ends; a server that is started again is asked again."""
        seen, rest, silent_since = 0.0, "", time.monotonic()
        while True:
            try:
                for part in self._client.StreamLogs(StreamLogsRequest(run_id=run, after_timestamp=seen)):
                    seen, silent_since = max(seen, part.latest_timestamp), time.monotonic()
                    *whole, rest = (rest + part.log_output).split("\n")
                    yield from whole
                if rest:
                    yield rest
                return
            except httpx.HTTPError as error:
                # A server that was started anew has another secret, and has ended its runs.
                anew = self._endpoint.operator_secret.read_text() != self._secret
                if anew or time.monotonic() - silent_since > RETURN:
                    raise ProcessEnded(
                        f"the server sends no more of the log of the run: {_reason(error)}"
                    ) from error
                time.sleep(1)

    def stop(self, run: int) -> None:
        """Stop a run; a server that is not there has none."""
        with contextlib.suppress(httpx.HTTPError):
            self._client.StopRun(StopRunRequest(run_id=run))


def online(endpoint: Endpoint) -> list[str] | None:
    """Return the names of the connected sites, "" for one without; None while SuperLink is not there."""
    try:
        with Control(endpoint) as control:
            return control.online()
    except httpx.HTTPError:
        return None


def refuse_open_control(endpoint: Endpoint) -> None:
    """Refuse to go on with a SuperLink that lets anybody start runs: another Flower than was tried?"""
    with httpx.Client(verify=ssl.create_default_context(cafile=str(endpoint.ca))) as anybody:
        answer = anybody.post(f"https://{endpoint.address}/v1/control/list-runs")
    if answer.status_code != httpx.codes.FORBIDDEN:
        raise ProcessEnded("SuperLink does not ask for the operator's secret: install flwr 1.41.")


def _reason(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        parsed = FlowerError.from_json(error.response.text)
        return str(parsed.message) if parsed else f"HTTP {error.response.status_code}"
    return str(error) or type(error).__name__
