"""Executes tasks in place of Flower's own executor: the installed fedscal, and nothing that was sent.

    python -m fedscal.flower.executor site STATE_FOLDER ENDPOINT_FOLDER
    python -m fedscal.flower.executor server ENDPOINT_FOLDER

Flower hands out a task for every message of a site and for every run of a server, together with the
app that the run was started with. The app's hash is compared with the list; the app itself is neither
unpacked nor imported. At a site this process holds torch, the images and the network from one message
to the next, so a message costs no start of a process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import httpx
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest, SendTaskHeartbeatRequest
from flwr.proto.task_pb2 import Task
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message

from fedscal.core import files
from fedscal.core.text import duration
from fedscal.flower.endpoint import Endpoint
from fedscal.flower.output import LOG_FORMAT, tell, tell_warnings
from fedscal.flower.patches import pull_soon
from fedscal.flower.processes import SiteDescription, allowed_hashes, end_with_parent, flower_program
from fedscal.flower.trace import mark

_log = logging.getLogger("fedscal.executor")
_POLL = 0.2
"""Seconds between two polls for a task."""
_PATIENCE = 60.0
"""Seconds for which a peer on this machine that does not answer is asked again."""


def connect(endpoint: Endpoint, interceptor: Any) -> RuntimeHttpClient:
    """Connect to the SuperNode or SuperLink of this machine, from which tasks are taken."""
    return RuntimeHttpClient.from_server_address(
        endpoint.address,
        False,
        endpoint.ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), interceptor],
        retry_invoker=RetryInvoker(
            lambda: exponential(max_delay=5), httpx.TransportError, max_tries=None, max_time=_PATIENCE
        ),
    )


def speak_for(endpoint: Endpoint, token: str) -> contextlib.closing[RuntimeHttpClient]:
    """Return a connection that speaks for one task."""
    return contextlib.closing(connect(endpoint, RuntimeTokenHttpInterceptor(token)))


def serve(endpoint: Endpoint, execute: Callable[[str, Task], None]) -> None:
    """Take tasks one after the other, of every kind, and execute them; one that fails ends nothing else."""
    wanted = AcquireTaskRequest(supported_task_types=[kind.value for kind in TaskType])
    secret, acquire = endpoint.executor_secret.read_bytes(), frozenset({"/flwr.proto.Runtime/AcquireTask"})
    proof = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=acquire)
    with contextlib.closing(connect(endpoint, proof)) as client:
        while True:
            try:
                answer = client.AcquireTask(wanted)
            except httpx.HTTPError as error:  # its peer on this machine is being started again
                _log.info("no tasks: %s", error)
                continue
            if not answer.token:
                time.sleep(_POLL)
                continue
            try:
                execute(answer.token, answer.task)
            except Exception:
                _log.exception("a request was given up (task %d)", answer.task.task_id)


def refusal(task: Task, kind: TaskType, fab_hash: str, allowed: Collection[str]) -> str:
    """Say why a task is refused; nothing if it may be executed."""
    if task.type != kind.value:
        return f"a task of kind '{task.type[:40]}' is not executed here"
    if fab_hash not in allowed:
        return f"the app {fab_hash[:64] or 'without a hash'} is not on the list of this machine"
    return ""


# ------------------------------------------------------------------------------------------------ a site


def at_site(
    name: str, endpoint: Endpoint, allowed: Collection[str], answer: Callable[[Message], Message]
) -> Callable[[str, Task], None]:
    """Return how a site executes a task: by answering its message itself."""

    def execute(token: str, task: Task) -> None:
        with speak_for(endpoint, token) as client, _heartbeat(client):
            message, context, _, fab = pull_task_input(client)
            mark("fetched", name)
            refused = refusal(task, TaskType.CLIENT_APP, files.sha256(fab.content), allowed)
            if refused:
                _log.error("REFUSED: %s (run %d)", refused, task.run_id)
                reply = Message(Error(ErrorCode.INVALID_FAB, "not on the site's list"), reply_to=message)
            else:
                reply = answer(message)
            mark("answered", name)
            push_message(client, reply, context)
            mark("pushed", name)
            client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.COMPLETED))

    return execute


@contextlib.contextmanager
def _heartbeat(client: RuntimeHttpClient) -> Any:
    """Tell Flower that the task is being worked on, for as long as it is."""

    def beat() -> bool:
        # A run that was stopped has no such task any more; its work is finished and then thrown away.
        with contextlib.suppress(httpx.HTTPError):
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()


def site(folder: Path, endpoint: Endpoint) -> None:
    """Serve the site that ``fedscal flower site`` described in a folder."""
    # torch, which a server's executor does not need
    from fedscal.flower.client_app import handle_message
    from fedscal.flower.site_service import SiteService

    described = SiteDescription.read(folder)
    service = SiteService(described.name, described.keys, folder)
    pull_soon("flwr.supernode.runtime.run_clientapp", "pull_and_inflate_object_from_tree")
    allowed = allowed_hashes(described.apps)
    _log.info("site %s executes the apps %s", service.client, ", ".join(sorted(h[:12] for h in allowed)))
    tell("ready to work")
    answer = telling(lambda message: handle_message(lambda: service, message))
    serve(endpoint, at_site(service.client, endpoint, allowed, answer))


def telling(answer: Callable[[Message], Message]) -> Callable[[Message], Message]:
    """Tell people of the rounds that a site takes part in; failures are logged where they happen."""

    def told(message: Message) -> Message:
        started = time.monotonic()
        reply = answer(message)
        if message.metadata.message_type == "train":
            spent = duration(time.monotonic() - started)
            tell(f"round {message.metadata.group_id}: answered after {spent}")
        return reply

    return told


# ---------------------------------------------------------------------------------------------- a server


def at_server(endpoint: Endpoint, allowed: Collection[str]) -> Callable[[str, Task], None]:
    """Return how a server executes a task: in a process of Flower's, if the app is ours."""

    def execute(token: str, task: Task) -> None:
        refused = refusal(task, TaskType.SERVER_APP, task.fab_hash, allowed)
        if refused:
            _log.error("REFUSED: %s (run %d)", refused, task.run_id)
            with speak_for(endpoint, token) as client:
                _fail(client, refused)
        else:
            threading.Thread(target=_run_server_app, args=(endpoint, token), daemon=True).start()

    return execute


def _run_server_app(endpoint: Endpoint, token: str) -> None:
    """Run Flower's process for a run to its end, however long it takes to start and however it ends."""
    with speak_for(endpoint, token) as client, _heartbeat(client):
        # The token goes by a file that only this user can read.
        with tempfile.NamedTemporaryFile("w", dir=endpoint.folder, prefix="token-") as file:
            file.write(token)
            file.flush()
            argv = [flower_program("flwr-serverapp"), "--runtime-api-address", endpoint.address]
            argv += ["--token-file", file.name, "--root-certificates", str(endpoint.ca)]
            argv += ["--parent-pid", str(os.getpid())]
            ended = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        _fail(client, f"the process of the run ended with code {ended.returncode}")


def _fail(client: RuntimeHttpClient, details: str) -> None:
    """Report a task as failed; one that is over already is not listened to."""
    with contextlib.suppress(httpx.HTTPError):
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=details))


def main(argv: Sequence[str]) -> None:
    """Execute tasks until ended."""
    logging.basicConfig(format=LOG_FORMAT)
    logging.getLogger("fedscal").setLevel(logging.INFO)
    tell_warnings()
    end_with_parent()
    endpoint = Endpoint.read(Path(argv[-1]))
    if argv[0] == "site":
        site(Path(argv[1]), endpoint)
    else:
        serve(endpoint, at_server(endpoint, allowed_hashes()))


if __name__ == "__main__":
    main(sys.argv[1:])
