"""A run in the browser while it goes on: a server on this machine's loopback that only reads.

It serves two paths below a random token, the report's page with a strip on how the run stands, and the
state by which that page renews itself; nothing of the file system, and nothing to other machines.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import logging
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from fedscal.core.errors import UsageError, first_line
from fedscal.core.extras import from_extra
from fedscal.experiment.load import Run
from fedscal.report.status import Seen, status
from fedscal.report.watched import Watched

if TYPE_CHECKING:
    from jinja2 import Template

_log = logging.getLogger(__name__)
HOST = "127.0.0.1"
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?", re.IGNORECASE)
"""Names by which a browser on this machine asks: any other is a page elsewhere whose name leads here."""
_SECONDS = 10.0
"""For a request: who is slower is not waited for."""
_META = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
_ICON = '<link rel="icon" href="data:,">'
"""None, so that a browser does not ask for one."""
_BODY = re.compile(r"<body[^>]*>")
_EMPTY = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>fedscal watch</title>
</head>
<body></body>
</html>
"""
_HEADERS = {
    "Allow": "GET, HEAD",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_CLOSED = "default-src 'none'; frame-ancestors 'none'"


class Answer(NamedTuple):
    """What is sent to a browser."""

    kind: str
    body: bytes
    policy: str = _CLOSED


@dataclass
class View:
    """What a browser is shown of a run directory; pages are drawn one at a time, and once for each state."""

    watched: Watched
    _drawn: tuple[str, str] = ("", _EMPTY)
    _one: threading.Lock = field(default_factory=threading.Lock)

    def page(self) -> Answer:
        """Return the report as it is now, with the strip and the script that renews it."""
        seen, fingerprint = self.watched.look()
        shown, policy = with_strip(self._report(seen.run, fingerprint), _strip(seen), fingerprint)
        return Answer("text/html", shown.encode("utf-8", errors="replace"), policy)

    def state(self) -> Answer:
        """Return the strip, and the fingerprint of the page that a browser should show."""
        seen, fingerprint = self.watched.look()
        return Answer("application/json", json.dumps({"page": fingerprint, "strip": _strip(seen)}).encode())

    def _report(self, run: Run | None, fingerprint: str) -> str:
        with self._one:
            if run and fingerprint != self._drawn[0]:
                self._drawn = (fingerprint, str(_pages().report_page(run)))
            return self._drawn[1]


def _pages() -> ModuleType:
    with from_extra("report", "fedscal watch"):
        from fedscal.report import page
    return page


def _strip(seen: Seen) -> str:
    return _template().render(status=status(seen, time.time()))


@cache
def _template() -> Template:
    with from_extra("report", "fedscal watch"):
        import jinja2
    source = _text("templates", "watch.html")
    made: Template = jinja2.Template(source, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return made


@cache
def _text(*path: str) -> str:
    return resources.files("fedscal.report").joinpath(*path).read_text("utf-8")


def with_strip(page: str, strip: str, fingerprint: str) -> tuple[str, str]:
    """Return a page with the strip, its style and its script, and the policy to send with it."""
    style, script = _text("assets", "watch.css"), _text("assets", "watch.js")
    own = html.unescape(found[1]) if (found := _META.search(page)) else _CLOSED
    added = (
        f"<style>{style}</style>\n"
        f'<div id="fedscal-watch" data-page="{fingerprint}">\n{strip}\n</div>\n'
        f'<script type="module" id="watch-script">{script}</script>\n'
    )
    body = _BODY.search(page)
    place = body.end() if body else 0
    return _META.sub(_ICON, page[:place]) + added + page[place:], policy(own, style, script)


def policy(own: str, style: str, script: str) -> str:
    """Return a page's policy with what the strip needs beside it: its style, its script, questions to us.

    >>> policy("default-src 'none'; style-src 'unsafe-inline'", "", "").split("; ")[1]
    "style-src 'unsafe-inline'"
    """
    words = [part.split() for part in own.split(";") if part.strip()]
    allowed = {name: sources for name, *sources in words}
    for name, source in (
        ("style-src", _hash(style)),
        ("script-src", _hash(script)),
        ("connect-src", "'self'"),
    ):
        before = [one for one in allowed.get(name, allowed.get("default-src", [])) if one != "'none'"]
        # A hash beside 'unsafe-inline' would undo it.
        allowed[name] = before if "'unsafe-inline'" in before else [*before, source]
    allowed.setdefault("img-src", ["data:"])  # the icon that is none
    allowed |= {"base-uri": ["'none'"], "form-action": ["'none'"], "frame-ancestors": ["'none'"]}
    return "; ".join(" ".join((name, *sources)) for name, sources in allowed.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class Watcher(ThreadingHTTPServer):
    """The server; ``url`` is the only way in."""

    daemon_threads = True
    block_on_close = False  # a browser may keep its connection open for as long as it likes

    def __init__(self, run: Path, port: int) -> None:
        self.token = secrets.token_urlsafe(32)
        view = View(Watched(run))
        self.answers: dict[str, Callable[[], Answer]] = {"": view.page, "state": view.state}
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                f"port {port} of this machine cannot be used ({error}): give another --port, or none."
            ) from error

    @property
    def url(self) -> str:
        """Where the page is, for whoever started the server."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that went away; what else fails is logged, without what was asked."""
        _log.debug("a request was not answered", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: Watcher
    timeout = _SECONDS
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fedscal", ""
    error_message_format, error_content_type = "%(code)d %(message)s\n", "text/plain"

    def parse_request(self) -> bool:
        """Read the head of a request, and refuse what is not asked by who was given the URL."""
        return super().parse_request() and self._admitted()

    def _admitted(self) -> bool:
        hosts = self.headers.get_all("Host") or []
        if self.command not in ("GET", "HEAD"):
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)
        elif len(hosts) != 1 or not _LOOPBACK.fullmatch(hosts[0]):
            self.send_error(HTTPStatus.FORBIDDEN, "only by a name of this machine")
        elif not secrets.compare_digest(self._split()[0].encode("latin-1"), self.server.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN, "only by the URL that fedscal watch printed")
        elif self._split()[1] not in self.server.answers:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            return True
        return False

    def _split(self) -> tuple[str, str]:
        """Return the token and the rest of the path."""
        token, _, rest = self.path.removeprefix("/").partition("/")
        return token, rest

    def do_GET(self) -> None:
        """Answer."""
        try:
            answer = self.server.answers[self._split()[1]]()
        except Exception as error:  # whatever it is, the next look may find another state
            _log.warning("the page cannot be drawn: %s: %s", type(error).__name__, first_line(error))
            _log.debug("how it failed", exc_info=True)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Content-Security-Policy", answer.policy)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815

    def end_headers(self) -> None:
        """Send what goes with every answer, a refusal too."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Write no log: the token is in every line of it."""


def watch(run: Path, port: int, begun: Callable[[str], None]) -> None:
    """Serve a run directory, which need not be there yet, until it is ended; ``begun`` is told the URL."""
    _template()  # who lacks the extra is told so at once
    if run.exists() and not run.is_dir():
        raise UsageError(f"{run} is not a directory.")
    with Watcher(run, port) as server:
        begun(server.url)
        _pages()  # takes a while; a browser waits for it
        server.serve_forever()
