"""Our SuperNode: what Flower's own leaves undone."""

from __future__ import annotations

from importlib import import_module
from inspect import signature
from itertools import pairwise

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal as node
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from fedscal.flower.patches import pull_soon
from fedscal.flower.supernode import Naps, finish_tasks_without_message

NAPS = Naps()


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> InMemoryNodeState:
    """A node's state, and Flower's function for receiving messages with ours around it."""
    monkeypatch.setattr(node, "_pull_and_store_message", node._pull_and_store_message)  # to be put back
    finish_tasks_without_message(NAPS)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # no message without them
    state = InMemoryNodeState(InMemoryObjectStore())
    state.set_node_id(7)
    state.store_run(Run.create_empty(run_id=1))
    state.store_fab(Fab("", b"", {}))
    return state


def receive(state: InMemoryNodeState, stopped: bool) -> int | None:
    """Let the node receive a message; its run may be stopped before the message's content is fetched."""
    message = Message(RecordDict({"config": ConfigRecord({"a": 1})}), dst_node_id=7, message_type="train")
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {number: part.deflate() for number, part in get_all_nested_objects(message).items()}

    def pull_object(run: int, number: str) -> bytes:
        if stopped:
            raise RunNotRunningException
        return contents[number]

    return node._pull_and_store_message(
        state=state,
        object_store=state.object_store,
        node_config={},
        receive=lambda: (message, get_object_tree(message)),
        get_run=lambda number: Run.create_empty(run_id=number),
        get_fab=lambda sha256, number: Fab("", b"", {}),
        pull_object=pull_object,
        confirm_message_received=lambda run, number: None,
        trusted_entities=None,
    )


def unfinished(state: InMemoryNodeState) -> list[str]:
    return [task.type for task in state.get_tasks() if task.status.status != "finished"]


def test_the_task_of_a_message_that_does_not_come_is_ended(state: InMemoryNodeState) -> None:
    assert receive(state, stopped=True) is None
    assert unfinished(state) == []
    assert not state.get_messages_legacy(is_reply=False)


def test_the_task_of_a_message_that_comes_is_to_be_done(state: InMemoryNodeState) -> None:
    assert receive(state, stopped=False) == 1
    assert unfinished(state) == [TaskType.CLIENT_APP]


def test_pauses_are_short_after_a_message_and_as_long_as_flower_s_when_none_comes(
    state: InMemoryNodeState, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = list[float]()
    monkeypatch.setattr("fedscal.flower.supernode.time.sleep", slept.append)
    for _ in range(30):
        NAPS.sleep(3)
    assert slept[0] == 0.1
    assert slept[-1] == 3
    assert all(0 < later - earlier <= 0.2 * earlier + 1e-9 for earlier, later in pairwise(slept[:18]))
    NAPS.sleep(0.5)
    assert slept[-1] == 0.1, "for a reply there are pauses of its own"
    assert receive(state, stopped=True) is None
    NAPS.sleep(3)
    assert slept[-1] == 3
    assert receive(state, stopped=False) == 1
    NAPS.sleep(3)
    assert slept[-1] == 0.1


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("flwr.supernode.start_client_internal", "pull_objects"),
        ("flwr.superlink.grid.http_grid", "pull_objects"),
        ("flwr.supernode.runtime.run_clientapp", "pull_and_inflate_object_from_tree"),
    ],
)
def test_a_part_that_is_on_its_way_is_asked_for_again_soon(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flowers = getattr(import_module(module), name)
    assert signature(flowers).parameters["initial_backoff"].default == 1
    monkeypatch.setattr(f"{module}.{name}", flowers)  # to be put back
    pull_soon(module, name)
    ours = getattr(import_module(module), name)
    assert (ours.func, ours.keywords) == (flowers, {"initial_backoff": 0.05})
