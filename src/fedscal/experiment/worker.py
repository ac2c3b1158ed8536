"""A worker process: ``python -m fedscal.experiment.worker`` reads requests on stdin, responds on stdout.

It is a process of its own rather than a fork: no pickle, no need for a ``__main__`` guard in the
caller's script, and it ends by itself when its parent does.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from fedscal.core.convert import convert
from fedscal.core.errors import DataRefused, ModelRefused
from fedscal.core.options import Value
from fedscal.core.rng import compute_threads
from fedscal.core.types import Failure
from fedscal.data.cache import Identity, refuse_others
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.source import source_model
from fedscal.experiment.spec import RunSpec
from fedscal.runtime.messages import Request, Response, failure, read_frame, read_request, write_message


@dataclass(frozen=True)
class _Begin:
    """The first message: the keys of the run, and which data it is about."""

    spec: Mapping[str, Value]
    data: Identity


def _requests(stream: BinaryIO) -> queue.Queue[Request]:
    """Read ahead in a thread, so that the end of the parent is seen in the middle of a training."""
    inbox: queue.Queue[Request] = queue.Queue()

    def read() -> None:
        try:
            while (request := read_request(stream)) is not None:
                inbox.put(request)
        except ModelRefused as error:  # the parent reports the last line
            sys.stderr.write(f"{error}\n")
            os._exit(1)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return inbox


def _handler(spec: RunSpec, known: Identity) -> Callable[[Request], Response | Failure]:
    """Return what handles requests: the client service, or why it cannot use the images that are there."""
    try:
        experiment = Experiment.build(spec)
        refuse_others(experiment.data, known, "the run")
        layout = experiment.clients_of_data()
        return experiment.service(layout, lambda: source_model(experiment).known).handle
    except DataRefused as error:
        refused = failure("", error)
        return lambda request: refused


def main() -> None:
    """Serve requests until stdin ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all of a group; the parent's to handle
        signal.signal(number, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not land between two messages
    first = read_frame(sys.stdin.buffer)
    if first is None:
        return
    begin = convert(first.header, _Begin)
    spec = RunSpec.make(**begin.spec)
    inbox = _requests(sys.stdin.buffer)
    with compute_threads(spec.threads):
        handle = _handler(spec, begin.data)
        while True:
            write_message(out, handle(inbox.get()))


if __name__ == "__main__":
    main()
