"""The resident of a site: ``python -m fedscal.drivers.flower.resident FOLDER SOCKET`` answers requests.

It keeps torch imported, the images mapped and the network built between Flower's short-lived processes.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import sys
import threading
import time
from pathlib import Path

from fedscal.documents import read_json
from fedscal.drivers.flower.bench import Bench
from fedscal.drivers.flower.programs import SITE_FILE
from fedscal.drivers.frames import read_frame, stream_of, write_frame

_log = logging.getLogger(__name__)


def bench_in(folder: Path) -> Bench:
    """Return the bench that ``fedscal flower site`` described in a folder."""
    described = read_json(folder / SITE_FILE)
    return Bench(described["name"], described["keys"], folder)


def serve(bench: Bench, place: Path) -> None:
    """Answer one request at a time on a Unix socket that only this user can reach."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(place))
        os.chmod(place, 0o600)
        door.listen()
        _log.warning("site %s is ready", bench.client)
        while True:
            connection, _ = door.accept()
            # A caller that was ended while it waited does not want the answer any more.
            with connection, contextlib.suppress(OSError), stream_of(connection) as stream:
                request = read_frame(stream)
                if request:
                    write_frame(stream, *bench.answer(*request))


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Serve the site in a folder."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _end_with(os.getppid())
    bench = bench_in(Path(sys.argv[1]))
    # torch imports this at the first optimiser step: seconds that had better pass before the first request.
    importlib.import_module("torch._dynamo")
    serve(bench, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
