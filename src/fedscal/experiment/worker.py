"""A worker process: ``python -m fedscal.experiment.worker`` reads messages on stdin, answers on stdout.

It is a process of its own rather than a fork: no pickle, no need for a ``__main__`` guard in the
caller's script, and it ends by itself when its parent does.
"""

from __future__ import annotations

import importlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

from fedscal.core.errors import DataRefused, OutOfSpace
from fedscal.core.rng import compute_threads
from fedscal.core.types import Package
from fedscal.data.cache import refuse_others
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.spec import RunSpec
from fedscal.runtime.messages import (
    Message,
    join_memory,
    read_message,
    reply_groups,
    reply_header,
    split_memory,
    write_message,
)
from fedscal.runtime.service import Site


def answer(site: Site, request: Message) -> Message:
    """Carry out one request."""
    models, memory = split_memory(request.groups)
    if request.header["do"] == "evaluate":
        return Message({"metrics": site.evaluate(request.header["clients"], models["server"])})
    if request.header["do"] == "profile":
        return Message({}, {"profile": site.profile(request.header["client"])})
    package = Package(request.header["round"], request.header["lr"], models)
    reply, kept = site.train(request.header["client"], package, memory)
    return Message({"reply": reply_header(reply)}, join_memory(reply_groups(reply), kept))


def _requests(stream: BinaryIO) -> queue.Queue[Message]:
    """Read ahead in a thread, so that the end of the parent is seen in the middle of a training."""
    inbox: queue.Queue[Message] = queue.Queue()

    def read() -> None:
        while (message := read_message(stream)) is not None:
            inbox.put(message)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return inbox


def _responder(spec: RunSpec, known: Mapping[str, Any]) -> Callable[[Message], Message]:
    """Return what answers requests: the client side, or why it cannot use the images that it finds."""
    try:
        experiment = Experiment.build(spec)
        refuse_others(experiment.data, known, "the run")
        site = experiment.service(experiment.clients_of_data())
    except DataRefused as error:
        refused = Message({"error": str(error), "code": error.exit_code})
        return lambda request: refused
    return lambda request: _answer_or_trouble(site, request)


def _answer_or_trouble(site: Site, request: Message) -> Message:
    try:
        return answer(site, request)
    except OutOfSpace as error:
        return Message({"error": str(error), "code": error.exit_code})
    except Exception as error:  # one client's trouble must not take the others down
        return Message({"error": f"{type(error).__name__}: {error}"})


def main() -> None:
    """Serve requests until stdin ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all of a group; the parent's to handle
        signal.signal(number, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a stray print must not land between two messages
    first = read_message(sys.stdin.buffer)
    if first is None:
        return
    spec = RunSpec.make(**first.header["spec"])
    inbox = _requests(sys.stdin.buffer)
    # torch imports this at the first optimiser step: seconds that pass unseen while the source model trains.
    importlib.import_module("torch._dynamo")
    with compute_threads(spec.threads):
        respond = _responder(spec, first.header["data"])
        while True:
            write_message(out, respond(inbox.get()))


if __name__ == "__main__":
    main()
