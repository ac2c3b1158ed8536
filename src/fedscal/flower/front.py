"""The only part of a server that is open to the network: it passes what sites need, and nothing else.

    python -m fedscal.flower.front CONFIG_FILE

SuperLink listens on loopback, with interfaces for sites, apps and operator on one port. This front
ends TLS with the server's certificate and passes POST requests to a list of paths below /v1/fleet/.
HTTP is parsed by uvicorn and h11, and written by httpx; here are only the list and the bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import httpx
import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedscal.core.documents import read_json
from fedscal.flower.endpoint import HOST, Endpoint
from fedscal.flower.output import LOG_FORMAT
from fedscal.flower.processes import end_with_parent

_log = logging.getLogger("fedscal.front")
_PREFIX = "/v1/fleet/"
_CALLS = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "get-run"),
    *("get-fab", "push-object", "pull-object", "confirm-message-received"),
)
_UNSIGNED_CALLS = ("register-node", "unregister-node")
"""Needed only where sites have no keys of their own."""
_HEADERS = frozenset({b"content-type", b"content-length", b"accept", b"accept-encoding", b"user-agent"})
_HEADER_PREFIX = b"flwr-"
MAX_BODY = 8 * 2**20
"""Flower cuts arrays into pieces of 5 MiB."""
MAX_HEADERS = 16 * 2**10
MAX_CONNECTIONS = 512
MAX_CONNECTIONS_OF_ONE = 64
"""From one address; several sites may share one behind a router."""
MAX_AT_ONCE = 32
"""Requests that SuperLink works on at a time: it holds each body in memory."""
HEADER_SECONDS = 10.0
BODY_SECONDS = 120.0
_UPSTREAM = httpx.Timeout(60, connect=5)


@dataclass(frozen=True)
class Config:
    """Where the front listens, and what is behind it."""

    host: str
    port: int
    certificate: str | None
    key: str | None
    endpoint: str


def paths(signed: bool) -> frozenset[str]:
    """Return the paths that are passed on."""
    return frozenset(_PREFIX + name for name in (*_CALLS, *(() if signed else _UNSIGNED_CALLS)))


class Drop(Exception):
    """The connection is to be closed without an answer.

    An answer of 5xx would be taken for the server's word: Flower's node then goes on without its
    heartbeat. A connection that breaks is tried again.
    """


class Front:
    """An ASGI application that passes requests of the list on to SuperLink."""

    def __init__(self, upstream: httpx.AsyncClient, passed: frozenset[str]) -> None:
        self._upstream, self._passed = upstream, passed
        self._free = asyncio.Semaphore(MAX_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        peer = scope["client"][0] if scope["client"] else "somebody"
        refused = self._refusal(scope)
        if refused:
            _log.warning("refused %s: %s", peer, refused)
            await Response(status_code=403, headers={"connection": "close"})(scope, receive, send)
            return
        try:
            async with self._free:
                await self._pass_on(scope, receive, send)
        except (Drop, httpx.HTTPError, TimeoutError) as error:
            _log.warning("dropped %s: %s", peer, error or type(error).__name__)
            await _break_off(send)

    def _refusal(self, scope: Scope) -> str:
        raw, headers = scope["raw_path"].decode("latin-1"), dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        if scope["method"] != "POST" or scope["query_string"]:
            return f"{scope['method'][:16]} {raw[:80]!r}"
        if raw not in self._passed or raw != scope["path"]:
            return f"the path {raw[:80]!r}"
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADERS:
            return "too long a head"
        if b"transfer-encoding" in headers or not length.isdigit() or len(length) > 12:
            return "a body without a length"
        return f"a body of {int(length):,} bytes" if int(length) > MAX_BODY else ""

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(n, v) for n, v in scope["headers"] if n in _HEADERS or n.startswith(_HEADER_PREFIX)]
        request = self._upstream.build_request(
            "POST", scope["raw_path"].decode("ascii"), headers=headers, content=_body(receive)
        )
        answer = await self._upstream.send(request, stream=True)
        try:
            if answer.status_code >= 500:
                raise Drop(f"SuperLink answered {answer.status_code}")
            kept = [(n, v) for n, v in answer.headers.raw if n.lower() in _HEADERS]
            start = {"status": answer.status_code, "headers": kept or [(b"content-length", b"0")]}
            await send({"type": "http.response.start", **start})
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await answer.aclose()


async def _body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield a request's body; one that comes too slowly is given up."""
    more = True
    async with asyncio.timeout(BODY_SECONDS):
        while more:
            event = await receive()
            if event["type"] != "http.request":
                raise Drop("the site went away")
            yield event["body"]
            more = event["more_body"]


async def _break_off(send: Send) -> None:
    """Begin an answer and do not end it: the server closes the connection, and httpx sees it break."""
    with contextlib.suppress(RuntimeError):  # the answer had begun already
        await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"1")]})


class Bounded(H11Protocol):
    """HTTP by h11 with bounds: connections in all and from one address, and time for a request's head."""

    _of: ClassVar[Counter[str]] = Counter()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or close it if there are too many."""
        super().connection_made(transport)
        self._peer = str((transport.get_extra_info("peername") or ("",))[0])
        Bounded._of[self._peer] += 1
        self._deadline: asyncio.TimerHandle | None = None
        if len(self.connections) > MAX_CONNECTIONS or Bounded._of[self._peer] > MAX_CONNECTIONS_OF_ONE:
            _log.warning("too many connections: one of %s is closed", self._peer)
            transport.abort()
        else:
            self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the head of a request must be there in time."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete and self._deadline:
            self._deadline.cancel()
            self._deadline = None
        elif self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        super().connection_lost(exc)
        Bounded._of[self._peer] -= 1
        if not Bounded._of[self._peer]:
            del Bounded._of[self._peer]
        if self._deadline:
            self._deadline.cancel()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)


async def serve(config: Config) -> None:
    """Run the front until it is ended."""
    endpoint = Endpoint.read(Path(config.endpoint))
    context = ssl.create_default_context(cafile=str(endpoint.ca))
    limits = httpx.Limits(max_connections=MAX_AT_ONCE, max_keepalive_connections=MAX_AT_ONCE)
    base = f"https://{HOST}:{endpoint.port}"
    async with httpx.AsyncClient(base_url=base, verify=context, timeout=_UPSTREAM, limits=limits) as upstream:
        await uvicorn.Server(
            uvicorn.Config(
                Front(upstream, paths(signed=config.certificate is not None)),
                host=config.host,
                port=config.port,
                http=Bounded,
                ws="none",
                lifespan="off",
                server_header=False,
                access_log=False,
                log_level="warning",
                proxy_headers=False,
                timeout_keep_alive=60,
                h11_max_incomplete_event_size=MAX_HEADERS,
                ssl_certfile=config.certificate,
                ssl_keyfile=config.key,
            )
        ).serve()


_NGINX = """\
# Written by 'fedscal flower server --front nginx'; made anew at every start of the server.
worker_processes 1;
pid {state}/nginx.pid;
error_log stderr warn;
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path {state}/nginx-body;
    proxy_temp_path {state}/nginx-proxy;
    fastcgi_temp_path {state}/nginx-fastcgi;
    uwsgi_temp_path {state}/nginx-uwsgi;
    scgi_temp_path {state}/nginx-scgi;
    limit_conn_zone $binary_remote_addr zone=address:1m;
    upstream superlink {{ server {address}; keepalive 16; }}
    server {{
        listen {host}:{port}{tls};
{certificate}
        limit_conn address {of_one};
        client_max_body_size {body};
        large_client_header_buffers 4 {headers};
        client_header_timeout {header_seconds}s;
        client_body_timeout {body_seconds}s;
        merge_slashes off;
        # The path as it was sent, not as nginx decodes it.
        if ($request_uri !~ "^/v1/fleet/({calls})$") {{ return 403; }}
        if ($request_method != POST) {{ return 403; }}
        location / {{
            proxy_pass https://superlink;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            # Bodies pass as they come: the worker of nginx may not write to a folder of ours.
            proxy_request_buffering off;
            proxy_max_temp_file_size 0;
            proxy_ssl_trusted_certificate {ca};
            proxy_ssl_verify on;
            proxy_ssl_name 127.0.0.1;
            proxy_intercept_errors on;
            # 444 closes the connection: Flower's node tries again; an answer of 5xx ends its heartbeat.
            error_page 500 502 503 504 = @drop;
        }}
        location @drop {{ return 444; }}
    }}
}}
"""
_NGINX_CERTIFICATE = "        ssl_certificate {0}/server.crt;\n        ssl_certificate_key {0}/server.key;"


def nginx_config(host: str, port: int, keys: Path | None, endpoint: Endpoint) -> str:
    """Return this front as a configuration of nginx, for operators who trust that: same list, same bounds."""
    calls = sorted(path.rpartition("/")[2] for path in paths(signed=keys is not None))
    return _NGINX.format(
        state=endpoint.folder,
        address=endpoint.address,
        ca=endpoint.ca,
        host=host,
        port=port,
        tls=" ssl" if keys else "",
        certificate=_NGINX_CERTIFICATE.format(keys.resolve()) if keys else "",
        calls="|".join(calls),
        connections=2 * MAX_CONNECTIONS,
        of_one=MAX_CONNECTIONS_OF_ONE,
        body=MAX_BODY,
        headers=MAX_HEADERS,
        header_seconds=int(HEADER_SECONDS),
        body_seconds=int(BODY_SECONDS),
    )


def main() -> None:
    """Serve what a file describes."""
    logging.basicConfig(format=LOG_FORMAT)
    end_with_parent()
    asyncio.run(serve(Config(**read_json(Path(sys.argv[1])))))


if __name__ == "__main__":
    main()
