"""A process that has imported the program and forks it on demand: the real program without its start-up.

Importing torch takes seconds and most tests are about what happens afterwards. Each request is a
line of JSON on stdin; the child has its own pid, files and signals, so it can be killed, limited and
timed like any process. ``tiny``, a benchmark of a few images, is registered for the children and for
the processes that they start in turn.

Warming up takes as long as many tests do. So all processes of a run of the tests share one: it listens at a
socket and forks a server of its own for each that connects. It ends with the last of these.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, TextIO

import tiny

import fedscal.cli
from fedscal.data.registry import BENCHMARKS

importlib.import_module("torch._dynamo")  # what a run imports late, seconds in every child
if importlib.util.find_spec("jinja2"):
    importlib.import_module("fedscal.report.page")
if importlib.util.find_spec("sklearn"):
    importlib.import_module("fedscal.experiment.tsne")

_PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "python_with_tiny")
_POINTS = ("replace", "rename", "unlink", "rmdir", "mkdir")


def die_at(point: int, count_file: str) -> None:
    """SIGKILL this process right before its ``point``-th change of the file system; count them all.

    Where two points have the same files on disk (an fsync, a directory that is there), one is enough.
    """
    count = 0

    def wrap(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def counted(path: str, *args: Any, **kwargs: Any) -> None:
            nonlocal count
            if not (name == "mkdir" and os.path.isdir(path)):
                count += 1
                if count == point:
                    os.kill(os.getpid(), signal.SIGKILL)
                with open(count_file, "w") as file:
                    file.write(str(count))
            return real(path, *args, **kwargs)

        return counted

    for name in _POINTS:
        setattr(os, name, wrap(name, getattr(os, name)))


def child(request: dict[str, Any]) -> None:
    """Become the program."""
    os.setsid()
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if request["file_limit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"],) * 2)
    if request["die_at"]:
        die_at(request["die_at"], request["count_file"])
    if request["before"]:
        exec(request["before"], {})  # a test's own sabotage
    sys.argv = ["fedscal", *request["argv"]]
    sys.executable = _PYTHON
    os.fsync = lambda fd: None  # it waits for the disk, and no test here cuts the power
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fedscal.cli.main()


def warm_up() -> None:
    """Let the program import and prepare what it does at its first use, which every child would repeat.

    That is modules of the command line and of a run, templates of the page, kernels that oneDNN makes.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FEDSCAL_CACHE"] = os.path.join(folder, "cache")
        BENCHMARKS.update(tiny.benchmarks())
        short = ["pretrain_epochs=1", "rounds=1", "--quiet", "--out", os.path.join(folder, "run")]
        for words in (["keys", "--json"], ["run", "benchmark=tiny", *short]):
            sys.argv = ["fedscal", *words]
            with (
                open(os.devnull, "w") as nowhere,
                contextlib.redirect_stdout(nowhere),
                contextlib.suppress(SystemExit),
            ):
                fedscal.cli.main()
    tempfile.tempdir = None  # a child may have another


def fork(request: dict[str, Any]) -> int:
    """Start a child and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        child(request)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    """Return the child's exit code, negative for a signal; None if it still runs after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.003)
    return None


def serve(requests: TextIO, answers: TextIO) -> None:
    """Serve one process of the tests until it goes."""
    print("ready", file=answers, flush=True)
    running: set[int] = set()
    for line in requests:
        request = json.loads(line)
        if "wait" in request:
            answer = wait(request["wait"], request["seconds"])
            running -= set() if answer is None else {request["wait"]}
        else:
            answer = pid = fork(request)
            running.add(pid)
        print(json.dumps(answer), file=answers, flush=True)
    for pid in running:  # what a test that failed left running, its workers too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def fork_server(listening: socket.socket) -> None:
    """Wait for a process of the tests and fork a server for it, if one comes."""
    try:
        connection, _ = listening.accept()
    except TimeoutError:
        return
    with connection:
        if os.fork():
            return
        listening.close()
        try:
            serve(connection.makefile("r"), connection.makefile("w"))
        finally:
            os._exit(0)


def main(address: str) -> None:
    """Serve all who connect to a socket in a folder of its own; end when they are gone."""
    warm_up()
    gc.freeze()  # a collection in a child would copy every page
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        listening.settimeout(60)  # whoever has started this one comes at once
        fork_server(listening)
        listening.settimeout(0.2)
        with contextlib.suppress(ChildProcessError):  # none is left
            while True:
                os.waitpid(-1, os.WNOHANG)
                fork_server(listening)
        os.unlink(address)  # before it is closed: who cannot connect may start another
        os.rmdir(os.path.dirname(address))


if __name__ == "__main__":
    main(sys.argv[1])
