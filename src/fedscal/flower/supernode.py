"""Flower's SuperNode, held to a list of apps, and ended when it has lost its connection.

    python -m fedscal.flower.supernode STATE_FOLDER HEARTBEAT_FILE [flags of flower-supernode]

Flower's node unpacks every app that its server sends. Here an app's hash is compared with the list
before anything else is done with it. And where Flower's node goes on without its main thread or its
heartbeat, alive for the operating system and dead for the server, this one ends, to be started again. The
task of a message that does not come is ended too.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from flwr.common.constant import SubStatus
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender

from fedscal.core import files
from fedscal.flower.output import tell
from fedscal.flower.patches import pull_soon, replace
from fedscal.flower.processes import SiteDescription, allowed_hashes, end_with_parent
from fedscal.flower.trace import mark

_COMMAND = "flwr.supernode.cli.flower_supernode"
_NODE = "flwr.supernode.start_client_internal"
_CONNECTION = "flwr.supernode.fleet_http_connection"
_FIRST_NAP, _LONGER = 0.1, 1.2
"""Seconds of the first pause after a message, and by how much the next one is longer."""


def hold_to_list(allowed: frozenset[str]) -> None:
    """Let Flower's own check of trusted apps be ours; it stands before an app is opened."""

    def trusted(fab: Fab, entities: dict[str, str]) -> bool:
        sha256 = files.sha256(fab.content)
        if sha256 not in allowed:
            tell(f"REFUSED: the app {sha256} is not on the list of this site")
        return sha256 in allowed

    replace(_NODE, "_verify_fab", lambda flowers: trusted)
    replace(_NODE, "http_request_response", _to_be_checked)
    replace(_COMMAND, "start_client_internal", _checking)


def _to_be_checked(connect: Any) -> Any:
    """Mark every app as one to be checked: Flower does so only for apps of its hub."""

    @contextmanager
    def connect_marking(*given: Any) -> Iterator[tuple[Any, ...]]:
        with connect(*given) as (number, receive, send, get_run, get_fab, *others):

            def get_marked(fab_hash: str, run: int) -> Fab:
                return Fab(fab_hash, get_fab(fab_hash, run).content, {"valid_license": "fedscal"})

            yield number, receive, send, get_run, get_marked, *others

    return connect_marking


def _checking(start: Any) -> Any:
    """Turn the check on, which Flower does where a file of trusted entities is given."""
    return lambda **given: start(**{**given, "trusted_entities": {"fedscal": "the list of this site"}})


class Receiving:
    """Flower's state of a node, which also notes the task and the message of an attempt to receive one."""

    def __init__(self, state: Any, name: str = "") -> None:
        self._state, self._name = state, name
        self._tasks: list[int] = []
        self._messages: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def create_task(self, **what: Any) -> int | None:
        """Create the task of a message."""
        mark("noticed", self._name)
        task: int | None = self._state.create_task(**what)
        self._tasks += [] if task is None else [task]
        return task

    def store_message(self, message: Any) -> Any:
        """Store a message, whose content is to come."""
        self._messages.append(message.metadata.message_id)
        return self._state.store_message(message)

    def give_up(self, store: Any) -> None:
        """End the task and forget the message."""
        for task in self._tasks:
            self._state.finish_task(task, sub_status=SubStatus.FAILED, details="the message did not come")
        self._state.delete_messages(message_ids=self._messages)
        for message in self._messages:
            store.delete(message)


class Naps:
    """Flower's pauses between two looks for a message or a reply: short after a message, then longer.

    Flower's node waits 3 s before it looks for a message again, and half a second for a reply of its app. In
    short rounds that is most of the time. Here the pauses grow with the time that nothing came, to Flower's
    own: they are a share of a round, whatever its length, and an idle site asks no more often than Flower's.
    """

    def __init__(self) -> None:
        self._pauses: dict[float, float] = {}

    def sleep(self, longest: float) -> None:
        """Pause in the place of a pause of Flower's, at most as long."""
        pause = min(self._pauses.get(longest, _FIRST_NAP), longest)
        self._pauses[longest] = pause * _LONGER
        time.sleep(pause)

    def begin(self) -> None:
        """Begin with short pauses again."""
        self._pauses.clear()


def finish_tasks_without_message(naps: Naps, name: str = "") -> None:
    """End the task of a message that does not come because its run was stopped meanwhile.

    Flower forgets to: the executor would wait an hour for the message, and the site would be lost so long.
    """

    def make(receive: Any) -> Any:
        def received(*, state: Any, object_store: Any, **others: Any) -> int | None:
            receiving = Receiving(state, name)
            run: int | None = receive(state=receiving, object_store=object_store, **others)
            if run is None:
                receiving.give_up(object_store)
            else:
                naps.begin()
            return run

        return received

    replace(_NODE, "_pull_and_store_message", make)


def report_heartbeats(path: Path) -> None:
    """Touch a file at every heartbeat that the server took, and end when there will be no more."""

    class Reporting(HeartbeatSender):
        def __init__(self, beat: Callable[[], bool]) -> None:
            super().__init__(_telling(lambda: beat() and _touched(path)))

        def _run(self) -> None:
            try:
                super()._run()
            except BaseException:
                logging.getLogger(__name__).exception("the heartbeat failed")
                os._exit(1)

    replace(_CONNECTION, "HeartbeatSender", lambda flowers: Reporting)


def _telling(beat: Callable[[], bool]) -> Callable[[], bool]:
    """Tell people when the server is reached, and when it is not any more."""
    reached = False

    def told() -> bool:
        nonlocal reached
        before, reached = reached, beat()
        if reached != before:
            tell("connected to the server" if reached else "the server does not answer; it is asked again")
        return reached

    return told


def _touched(path: Path) -> bool:
    path.touch()
    return True


def main() -> None:
    """Run a SuperNode until it is ended."""
    end_with_parent()
    folder, heartbeat = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
    described = SiteDescription.read(folder)
    hold_to_list(allowed_hashes(described.apps))
    report_heartbeats(heartbeat)
    naps = Naps()
    replace(_NODE, "time", lambda flowers: naps)
    pull_soon(_NODE)
    finish_tasks_without_message(naps, described.name)
    _touched(heartbeat)
    try:
        import_module(_COMMAND).flower_supernode()
    finally:  # threads of Flower's would keep the process alive without its main loop
        error = sys.exception()
        sys.stdout.flush()
        os._exit(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)


if __name__ == "__main__":
    main()
