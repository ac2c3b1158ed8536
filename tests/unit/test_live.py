"""The live view of a run over real HTTP: who may ask, for what, and what the answer follows."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import shutil
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from test_report import make_lines, summarise, write_run

from fedscal.core.errors import UsageError
from fedscal.core.files import only_process
from fedscal.experiment.load import Run
from fedscal.report import live
from fedscal.report.live import HOST, Watcher, policy, watch, with_strip

pytest.importorskip("jinja2")


@dataclass(frozen=True)
class Answer:
    """What a browser gets."""

    code: int
    headers: http.client.HTTPMessage
    text: str


@dataclass(frozen=True)
class Browser:
    """Asks a server, as a browser that knows its URL or another."""

    server: Watcher

    def ask(self, path: str = "", method: str = "GET", token: str | None = None, **headers: str) -> Answer:
        """Ask for a path below the token."""
        whole = f"/{self.server.token if token is None else token}/{path}"
        return self.raw(whole, method, **{"Host": f"{HOST}:{self.server.server_port}", **headers})

    def raw(self, path: str, method: str = "GET", **headers: str) -> Answer:
        """Ask with exactly these headers."""
        asked = http.client.HTTPConnection(HOST, self.server.server_port, timeout=20)
        asked.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            asked.putheader(name, value)
        asked.endheaders()
        given = asked.getresponse()
        try:
            return Answer(given.status, given.headers, given.read().decode())
        finally:
            asked.close()

    def state(self) -> dict[str, Any]:
        """Return what the page asks for every other second."""
        value: dict[str, Any] = json.loads(self.ask("state").text)
        return value


@contextmanager
def watching(run: Path) -> Iterator[Browser]:
    """Watch a directory."""
    with Watcher(run, 0) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield Browser(server)
        finally:
            server.shutdown()
            serving.join()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two rounds of four."""
    return write_run(tmp_path / "run", make_lines()[:3], None, rounds=4)


@pytest.fixture
def browser(run: Path) -> Iterator[Browser]:
    with watching(run) as browser:
        yield browser


# -- Who may ask, and for what ------------------------------------------------------------------------------


def test_the_page_and_its_state_are_served_to_who_has_the_url(browser: Browser) -> None:
    page, state = browser.ask(), browser.ask("state")
    assert page.code == state.code == 200
    assert "<main" in page.text
    assert json.loads(state.text)["page"] in page.text
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert state.headers["Content-Type"] == "application/json; charset=utf-8"
    assert browser.server.url == f"http://{HOST}:{browser.server.server_port}/{browser.server.token}/"
    assert len(browser.server.token) > 40


@pytest.mark.parametrize("token", ["", "x", "a" * 43, "%2e%2e", "state"])
def test_without_the_token_nothing_is_told(browser: Browser, token: str) -> None:
    for path in ("", "state", "nothing"):
        answer = browser.ask(path, token=token)
        assert answer.code == 403
        assert browser.server.token not in answer.text + str(answer.headers)
        assert "run" not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "metrics.jsonl",
        "state/",
        "state?x=1",
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "/etc/passwd",
        "./state",
        "spec.toml",
        "watch.js",
        "favicon.ico",
    ],
)
def test_nothing_else_is_served(browser: Browser, path: str) -> None:
    assert browser.ask(path).code == 404


def test_a_token_that_is_no_text_is_refused(browser: Browser) -> None:
    with socket.create_connection((HOST, browser.server.server_port)) as asked:
        asked.sendall(b"GET /\xfc\xff/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert asked.recv(100).startswith(b"HTTP/1.1 403 ")


def test_a_path_of_another_form_is_refused(browser: Browser) -> None:
    host = f"{HOST}:{browser.server.server_port}"
    for path in (
        "/",
        "//",
        "*",
        f"http://{host}/{browser.server.token}/",
        f"//{host}/{browser.server.token}/",
    ):
        assert browser.raw(path, Host=host).code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "0.0.0.0", "", "127.0.0.2"]
)
def test_a_name_that_leads_here_from_elsewhere_is_refused(browser: Browser, host: str) -> None:
    assert browser.ask(Host=host).code == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "LOCALHOST:1", "[::1]:80"])
def test_this_machine_by_any_name_and_port_is_served(browser: Browser, host: str) -> None:
    assert browser.ask("state", Host=host).code == 200


def test_no_host_and_two_hosts_are_refused(browser: Browser) -> None:
    path = f"/{browser.server.token}/state"
    assert browser.raw(path).code == 403
    assert browser.raw(path, Host="localhost", host="localhost").code == 403


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "XYZ"]
)
def test_only_get_and_head(browser: Browser, method: str) -> None:
    answer = browser.ask("state", method)
    assert answer.code == 405
    assert answer.headers["Allow"] == "GET, HEAD"


def test_head_has_the_headers_of_get_and_no_body(browser: Browser) -> None:
    head, get = browser.ask("state", "HEAD"), browser.ask("state")
    assert (head.code, head.text) == (200, "")
    assert abs(int(head.headers["Content-Length"]) - len(get.text.encode())) < 10  # the clock's digits
    assert browser.ask("nothing", "HEAD").code == 404


@pytest.mark.parametrize(("path", "token"), [("", None), ("state", None), ("nothing", None), ("", "wrong")])
def test_every_answer_is_kept_from_caches_frames_and_other_pages(
    browser: Browser, path: str, token: str | None
) -> None:
    headers = browser.ask(path, token=token).headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Python" not in headers["Server"]


def test_nothing_is_logged(
    browser: Browser, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    browser.ask()
    browser.ask("state", token="wrong")
    with socket.create_connection((HOST, browser.server.server_port)) as gone:
        gone.sendall(b"no HTTP\r\n\r\n")
    browser.ask("state")
    assert capfd.readouterr() == ("", "")
    assert browser.server.token not in caplog.text


def test_only_this_machine_is_listened_to(browser: Browser) -> None:
    assert browser.server.server_address[0] == "127.0.0.1"


# -- The page's policy --------------------------------------------------------------------------------------


def sources(answer: Answer, name: str) -> list[str]:
    parts = (part.split() for part in answer.headers["Content-Security-Policy"].split(";"))
    return next((allowed for directive, *allowed in parts if directive == name), [])


def sha256(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_page_runs_no_other_script_than_its_own_and_asks_nobody_else(browser: Browser) -> None:
    page = browser.ask()
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", page.text, re.DOTALL)
    run = {sha256(text) for kind, text in scripts if "application/json" not in kind}
    assert set(sources(page, "script-src")) == run
    assert sources(page, "connect-src") == ["'self'"]
    assert sources(page, "default-src") == sources(page, "frame-ancestors") == ["'none'"]
    assert "Content-Security-Policy" not in page.text  # a second policy in the page would forbid the script


def test_a_policy_by_hashes_keeps_them() -> None:
    page = (
        '<html><head><meta http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; '
        "script-src &#39;sha256-aa&#39;; style-src &#39;sha256-bb&#39;; "
        'img-src data:"></head><body class="x"><main>'
    )
    shown, allowed = with_strip(page, "<p>strip</p>", "0123")
    assert shown.startswith('<html><head><link rel="icon" href="data:,"></head><body class="x"><style>')
    assert shown.endswith("</script>\n<main>")
    directives = dict(part.split(" ", 1) for part in allowed.split("; "))
    assert directives["script-src"].startswith("'sha256-aa' 'sha256-")
    assert directives["style-src"].startswith("'sha256-bb' 'sha256-")
    assert directives["img-src"] == "data:"


def test_a_policy_that_allows_inline_styles_still_does() -> None:
    assert "style-src 'unsafe-inline';" in policy("default-src 'none'; style-src 'unsafe-inline'", "a", "b")


# -- A run that changes -------------------------------------------------------------------------------------


def headline(browser: Browser) -> str:
    found = re.search(r"<strong>(.*)</strong>", browser.state()["strip"])
    assert found
    return found[1]


def test_a_run_from_before_its_beginning_to_after_its_end(tmp_path: Path) -> None:
    run, lines = tmp_path / "run", make_lines()
    with watching(run) as browser:
        assert headline(browser) == "No run here yet"
        assert browser.state()["page"] == ""
        assert "<main>" not in browser.ask().text
        assert not run.exists()
        with only_process(run):
            write_run(run, lines[:2], None, rounds=4)
            first = browser.state()["page"]
            assert headline(browser) == "Round 2 of 4"
            assert "1 round ·" in browser.ask().text
            write_run(run, lines[:3], None, rounds=4)
            second = browser.state()["page"]
            assert headline(browser) == "Round 3 of 4"
            assert "2 rounds ·" in browser.ask().text
        assert headline(browser) == "Stopped after round 2 of 4"
        third = browser.state()["page"]
        with only_process(run):
            assert headline(browser) == "Round 3 of 4"
            write_run(run, lines, summarise(lines), rounds=4)
        assert headline(browser) == "Finished after 4 rounds"
        last = browser.state()["page"]
        assert len({"", first, second, third, last}) == 5
        shutil.rmtree(run)
        assert headline(browser) == "The run was removed"
        assert browser.state()["page"] == last
        assert "4 rounds ·" in browser.ask().text


def test_a_line_that_is_being_written_is_no_damage_until_nobody_writes_it(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "partic')
    with watching(run) as browser:
        with only_process(run):
            assert "not a whole record" not in browser.ask().text
            assert headline(browser) == "Round 3 of 4"
        assert "line 4: not a whole record, left out" in browser.ask().text


def test_a_page_is_drawn_once_for_each_state(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedscal.report import page

    drawn = []

    def draw(run: Run) -> str:
        drawn.append(run.path)
        return "<body><main></main>"

    monkeypatch.setattr(page, "report_page", draw)
    with watching(run) as browser:
        for _ in range(3):
            browser.ask()
        assert len(drawn) == 1
        (run / "spec.toml").write_text("rounds = 9\n")
        browser.ask()
    assert len(drawn) == 2


def test_names_are_text(tmp_path: Path) -> None:
    lines = make_lines()[:2]
    lines[-1]["failures"] = {"<script>alert(1)</script>": "a&b"}
    run = write_run(tmp_path / "run", lines, None, rounds=4)
    with watching(run) as browser:
        strip = browser.state()["strip"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt; (a&amp;b)" in strip
    assert "<script>" not in strip


def test_a_page_that_cannot_be_drawn_is_an_answer_and_a_line(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from fedscal.report import page

    def broken(run: object) -> str:
        raise KeyError("entropy")

    monkeypatch.setattr(page, "report_page", broken)
    assert browser.ask().code == 500
    assert browser.ask("state").code == 200
    assert caplog.messages == ["the page cannot be drawn: KeyError: 'entropy'"]


# -- The command --------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_and_a_file_are_refused(browser: Browser, run: Path) -> None:
    with pytest.raises(UsageError, match="give another --port"):
        Watcher(run, browser.server.server_port)
    with pytest.raises(UsageError, match="is not a directory"):
        watch(run / "spec.toml", 0, pytest.fail)


def test_without_the_extra_the_message_names_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live._template.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=re.escape("pip install 'fedscal[report]'")):
        watch(run, 0, pytest.fail)
