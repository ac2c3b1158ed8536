"""Who can reach a server's port, and what it gets him: nothing. And what a server may do to its sites."""

from __future__ import annotations

import base64
import contextlib
import shutil
import socket
import ssl
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flower_processes import Federation
from flower_world import SITES, World
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.fab import Fab
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from harness import Zygote, rows, summary

from fedscal.core import files
from fedscal.flower.endpoint import Endpoint
from fedscal.flower.launch import local_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONTROL, RUNTIME = "/v1/control/start-run", "/v1/runtime/acquire-task"
PATHS = [
    *(
        CONTROL,
        RUNTIME,
        "/v1/runtime/pull-task-input",
        "/v1/runtime/create-task",
        "/v1/control/register-node",
    ),
    *("/v1/fleet/register-node", "/", "/docs", "/openapi.json", "/health", "/v1/fleet/", "/v1/fleet"),
    *("//v1/control/start-run", "/v1/fleet//v1/control/start-run", "/v1/fleet/../control/start-run"),
    *("/v1/fleet/%2e%2e/control/start-run", "/v1/%63ontrol/start-run", "/v1/fleet%2fpull-messages"),
    *("/v1/fleet/pull-messages/", "/v1/fleet/pull-messages%00", "/v1/fleet/pull-messages;x"),
    *("/v1/fleet/pull-messages?x=1", "/V1/FLEET/pull-messages", "/v1/fleet/.%2e/control/start-run"),
]


def evil_app(folder: Path, canary: Path) -> bytes:
    """Return a Flower app whose both halves write a file named like who executes them."""
    package = folder / "evil"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(f"open({str(canary)!r} + '-import', 'w').close()\n")
    (package / "parts.py").write_text(
        textwrap.dedent(f"""
        from flwr.app import Message, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp import ServerApp

        client, server = ClientApp(), ServerApp()

        @client.query()
        def answer(message, context):
            open({str(canary)!r} + "-site", "w").close()
            return Message(RecordDict(), reply_to=message)

        @server.main()
        def main(grid, context):
            open({str(canary)!r} + "-server", "w").close()
            messages = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
            replies = list(grid.send_and_receive(messages, timeout=60))
            print("replies", [reply.error.code if reply.has_error() else 0 for reply in replies], flush=True)
        """)
    )
    (folder / "pyproject.toml").write_text(
        textwrap.dedent("""
        [project]
        name = "evil"
        version = "1.0.0"
        dependencies = []
        [tool.flwr.app]
        publisher = "evil"
        [tool.flwr.app.components]
        serverapp = "evil.parts:server"
        clientapp = "evil.parts:client"
        [tool.flwr.app.config]
        """)
    )
    return build_fab_from_disk(folder)


def start_request(app: bytes) -> StartRunRequest:
    return StartRunRequest(fab=fab_to_proto(Fab(files.sha256(app), app, {})))


def site_headers(key: Path) -> dict[str, str]:
    """Return what Flower's node sends with every request: the key and a signed time."""
    private = load_ssh_private_key(key.read_bytes(), None)
    assert isinstance(private, EllipticCurvePrivateKey)
    stamp = now().isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(public_key_to_bytes(private.public_key())).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(sign_message(private, stamp.encode())).decode(),
        TIMESTAMP_HEADER: stamp,
    }


def outsider(machines: Federation) -> httpx.Client:
    """Return a connection of somebody who has nothing but the address, not even the authority."""
    return httpx.Client(base_url=f"https://127.0.0.1:{machines.port}", verify=False, timeout=20)


def post(client: httpx.Client, path: str, content: bytes = b"", headers: dict[str, str] | None = None) -> int:
    """Send a request whose path nobody tidies up; return the status."""
    url = client.base_url.copy_with(raw_path=path.encode())
    kind = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
    request = httpx.Request("POST", url, content=content, headers={**kind, **(headers or {})})
    return client.send(request).status_code


def test_an_outsider_and_a_site_get_nothing_and_a_run_in_progress_keeps_its_bits(
    machines: Federation, world: World, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    evil = start_request(evil_app(tmp_path / "app", canary)).SerializeToString()
    out = machines.folder / "attacked"
    started = machines.run(out)
    started.says("round 0", 300)
    with outsider(machines) as client:
        for headers in ({}, site_headers(machines.keys / "a" / "key")):
            assert {path: post(client, path, evil, headers) for path in PATHS} == dict.fromkeys(PATHS, 403)
            for method in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "CONNECT"):
                assert client.request(method, "/v1/fleet/pull-messages", headers=headers).status_code == 403
        # What is let through is for those who sign, and only for themselves.
        mine = PullMessagesRequest().SerializeToString()
        assert post(client, "/v1/fleet/pull-messages", mine) == 401
        assert post(client, "/v1/fleet/pull-messages", mine, site_headers(machines.keys / "a" / "key")) == 401
    assert started.wait(300) == 0, started.text
    here = world.reference("fedscal", method="fedscal")
    assert summary(out)["weights_sha256"] == summary(here)["weights_sha256"]
    assert rows(out) == rows(here)
    assert not list(tmp_path.glob("canary*"))


def test_what_is_too_large_too_slow_or_garbled_is_closed(machines: Federation) -> None:
    with outsider(machines) as client:
        assert post(client, "/v1/fleet/push-object", b"x" * (8 * 2**20 + 1)) == 403
        chunked = httpx.Request(
            "POST", client.base_url.copy_with(raw_path=b"/v1/fleet/push-object"), content=iter([b"x"])
        )
        assert client.send(chunked).status_code == 403
    for length in (17_000, 100_000):
        # Whether the whole head was read, or the connection closed before, depends on how it was cut.
        with outsider(machines) as client, contextlib.suppress(httpx.TransportError):
            assert post(client, "/v1/fleet/push-object", headers={"x": "y" * length}) in (400, 403)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", machines.port), 30) as raw,
        context.wrap_socket(raw) as slow,
    ):
        slow.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\n")  # and never the rest
        slow.settimeout(30)
        assert slow.recv(100) == b""


def test_other_users_of_the_servers_machine_get_nothing_by_its_own_port(machines: Federation) -> None:
    endpoint = Endpoint.read(local_folder(machines.folder / "fedscal-server"))
    assert endpoint.folder.stat().st_mode & 0o077 == 0
    context = ssl.create_default_context(cafile=str(endpoint.ca))
    with httpx.Client(base_url=f"https://{endpoint.address}", verify=context) as client:
        for path in (CONTROL, "/docs", "/openapi.json", "/v1/control/stop-run", "/v1/control/register-node"):
            assert post(client, path) == 403
            assert post(client, path, headers={"fedscal-operator": "guess"}) == 403
        wanted = AcquireTaskRequest(supported_task_types=["flwr-serverapp"]).SerializeToString()
        assert post(client, RUNTIME, wanted) in (401, 403)
        assert post(client, "/v1/runtime/pull-task-input") in (401, 403)


def test_a_server_that_another_authority_vouches_for_is_refused(machines: Federation) -> None:
    assert machines.start("keys", "keys", "others", "--sites", "a").wait(120) == 0
    site = machines.site("a", keys=machines.folder / "others")
    assert site.wait(120) == 2
    assert "is refused by" in site.text
    assert "Traceback" not in site.text


# A server in the hands of somebody else: Flower's own executor in place of ours runs whatever is started.
TAKEN_OVER = """
    from fedscal.flower import launch
    from fedscal.flower.endpoint import Endpoint
    from fedscal.flower.processes import flower_program

    honest = launch._module

    def module(name, *words):
        if name != "executor":
            return honest(name, *words)
        endpoint = Endpoint.read(words[1])
        return [flower_program("flower-superexec"), "--runtime-api-address", endpoint.address,
                "--root-certificates", str(endpoint.ca),
                "--superexec-auth-secret-file", str(endpoint.executor_secret)]

    launch._module = module
"""


@pytest.fixture(scope="module")
def taken_over(
    world: World, fedscal: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Federation]:
    """A server whose operator has full control, and one honest site."""
    found = Federation(world, tmp_path_factory.mktemp("taken-over"), fedscal.cache)
    try:
        assert found.start("keys", "keys", "keys", "--sites", ",".join(SITES)).wait(120) == 0
        found.server(sabotage=TAKEN_OVER)
        yield found
    finally:
        found.close()


@pytest.mark.long
def test_no_app_but_ours_runs_at_a_site_whoever_runs_the_server(
    taken_over: Federation, tmp_path: Path
) -> None:
    from fedscal.flower.control import Control  # Flower's server with its database, seconds for all others

    canary = tmp_path / "canary"
    app = evil_app(tmp_path / "app", canary)
    sites = {name: taken_over.site(name) for name in SITES}
    for site in sites.values():
        site.says("connected to the server")
    with Control(Endpoint.read(local_folder(taken_over.folder / "fedscal-server"))) as control:
        number = int(control._client.StartRun(start_request(app)).run_id)
        said = "\n".join(control.lines(number))
    assert "replies [" in said, said  # the app did run at the server and did ask all sites
    assert (tmp_path / "canary-server").exists()
    assert not (tmp_path / "canary-site").exists()
    for site in sites.values():
        assert f"REFUSED: the app {files.sha256(app)}" in site.text
        assert not list(taken_over.folder.glob("state-*/flwr/apps/evil*"))
    # The sites go on.
    started = taken_over.run(taken_over.folder / "afterwards")
    assert started.wait(300) == 0, started.text


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed")
def test_nginx_with_our_configuration_is_as_closed(world: World, fedscal: Zygote, tmp_path: Path) -> None:
    machines = Federation(world, tmp_path / "machines", fedscal.cache)
    machines.folder.mkdir()
    evil = start_request(evil_app(tmp_path / "app", tmp_path / "canary")).SerializeToString()
    try:
        assert machines.start("keys", "keys", "keys", "--sites", ",".join(SITES)).wait(120) == 0
        machines.server("--front", "nginx")
        for name in SITES:
            machines.site(name)
        started = machines.run(machines.folder / "run")
        with outsider(machines) as client:
            answers = {path: post(client, path, evil) for path in PATHS}
            assert set(answers.values()) <= {400, 403}, answers
            assert post(client, "/v1/fleet/pull-messages") == 401
        assert started.wait(300) == 0, started.text
    finally:
        machines.close()
    here = world.reference("fedscal", method="fedscal")
    assert summary(machines.folder / "run")["weights_sha256"] == summary(here)["weights_sha256"]
    assert not list(tmp_path.glob("canary*"))
