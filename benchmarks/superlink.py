"""What Flower's SuperLink computes for a message, a poll and a heartbeat; our codec and masks beside it.

    python -m benchmarks.superlink

A real SuperLink, with its data base on disk, serves this process, which is the app of a server and a site at
once, both by Flower's own classes over loopback. Seconds are processor time: of the SuperLink, and of this
process, which are different ones. docs/scale.md computes with these numbers what many sites would need.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import torch
from flwr.app import Message, RecordDict
from flwr.common import ndarray_to_bytes
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, SUPERLINK_NODE_ID
from flwr.common.secure_aggregation.crypto.shamir import create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen, share_keys_plaintext_concat
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, RegisterNodeFleetRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkState, LinkStateFactory
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.primitives.asymmetric import (
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from rich.console import Console
from rich.table import Table

from benchmarks.tree import cpu_seconds
from fedscal.flower import codec
from fedscal.flower.endpoint import HOST, free_port
from fedscal.flower.processes import environment, flower_program
from fedscal.runtime.messages import Frame

MEGABYTES = {1: 5, 10: 5, 100: 2}
"""The sizes of messages, and how often each is sent."""
NODES = 300
_POLLS = 200
_MILLION = 1_000_000


@dataclass(frozen=True)
class Link:
    """A SuperLink, its address, its state, and a run in it."""

    pid: int
    address: str
    state: LinkState
    run: int
    task: int
    token: str


@contextmanager
def superlink(folder: Path) -> Iterator[Link]:
    """Start a SuperLink with a run that goes on; end it."""
    address, database = f"{HOST}:{free_port()}", str(folder / "state.db")
    words = ["--insecure", "--host", HOST, "--port", address.rpartition(":")[2], "--database", database]
    process = subprocess.Popen(
        [flower_program("flower-superlink"), *words, "--isolation", "process"],
        env=environment(folder / "home"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(address)
        state = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database)).state()
        run = state.create_run("", "", "", {}, NOOP_FEDERATION_ID, None, None, TaskType.SERVER_APP)
        task = state.get_run_info(run_ids=[run])[0].primary_task_id
        assert task is not None
        token = state.claim_task(task)
        assert token
        assert state.activate_task(task)
        yield Link(process.pid, address, state, run, task, token)
    finally:
        process.terminate()
        process.wait()


def _wait_for(address: str) -> None:
    for _ in range(600):
        try:
            httpx.get(f"http://{address}/")
        except httpx.TransportError:
            time.sleep(0.5)
        else:
            return
    raise TimeoutError("the SuperLink does not answer")


@dataclass(frozen=True)
class Spent:
    """Seconds of computing: of the SuperLink, and of this process."""

    link: float
    here: float


def spent(link: Link, work: Callable[[], Any], times: int = 1) -> tuple[Spent, Any]:
    """Return what it took to do something once, out of so many times; and what it returned."""
    link.state.acknowledge_task_heartbeat(link.task)
    before = cpu_seconds(link.pid), time.process_time()
    for _ in range(times):
        found = work()
    after = cpu_seconds(link.pid), time.process_time()
    return Spent((after[0] - before[0]) / times, (after[1] - before[1]) / times), found


def idle(link: Link) -> Iterator[tuple[str, Spent]]:
    """Yield what nodes cost that have nothing to do."""
    private, public = generate_key_pairs()
    key = public_key_to_bytes(public)
    with FleetHttpClient.from_server_address(
        link.address,
        True,
        None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(private, public),
        ],
    ) as client:
        client.RegisterNode(RegisterNodeFleetRequest(public_key=key))
        every = {"heartbeat_interval": HEARTBEAT_DEFAULT_INTERVAL}
        answer = client.ActivateNode(ActivateNodeRequest(public_key=key, **every))
        node = Node(node_id=answer.node_id)
        ask = PullMessagesRequest(node=node)
        yield "site asks for a message in vain", spent(link, lambda: client.PullMessages(ask), _POLLS)[0]
        beat = SendNodeHeartbeatRequest(node=node, **every)
        yield "site's heartbeat", spent(link, lambda: client.SendNodeHeartbeat(beat), _POLLS)[0]


def messages(link: Link, grid: HttpGrid) -> Iterator[tuple[str, Spent]]:
    """Yield what a message and its reply cost on their ways, by size."""
    other = _added_node(link, "another site")
    done = False
    with http_request_response(link.address, insecure=True) as site:
        for size, times in MEGABYTES.items():
            found = [_exchanged(link, grid, site, other, size) for _ in range(times)]
            for leg in found[0]:
                yield f"{leg}, {size} MB", _mean([one[leg] for one in found])
        done = True
    assert done, "Flower's connection logs what went wrong, and goes on"


def _exchanged(link: Link, grid: HttpGrid, site: Any, other: int, size: int) -> dict[str, Spent]:
    """Send a message to a site, and to another; let the first one answer with as much."""
    node, receive, send, _, _, pull, push, confirm = site
    content = _records(size)
    sending, (sent,) = spent(link, lambda: list(grid.push_messages([_request(content, node)])))
    again, _ = spent(link, lambda: list(grid.push_messages([_request(content, other)])))
    fetching, message = spent(link, lambda: _fetched(link, receive, pull, confirm))
    polling, _ = spent(link, lambda: list(grid.pull_messages([sent])), 10)
    reply = Message(_records(size), reply_to=message)
    answering, _ = spent(link, lambda: _answered(link, reply, send, push))
    reading, (got,) = spent(link, lambda: list(grid.pull_messages([sent])))
    assert got.metadata.reply_to_message_id == sent
    return {
        "server sends": sending,
        "server sends the same to another": again,
        "site fetches": fetching,
        "server asks for a reply in vain": polling,
        "site replies": answering,
        "server fetches the reply": reading,
    }


def _mean(found: Sequence[Spent]) -> Spent:
    return Spent(fmean(one.link for one in found), fmean(one.here for one in found))


def _added_node(link: Link, key: str) -> int:
    node = link.state.create_node("", "", key.encode(), 0)
    link.state.activate_node(node, HEARTBEAT_DEFAULT_INTERVAL)
    return node


def _request(content: RecordDict, node: int) -> Message:
    return Message(content, node, "train", ttl=3600)


def _records(megabytes: int) -> RecordDict:
    return codec.to_records(Frame({"kind": "train"}, os.urandom(megabytes * _MILLION)))


def _fetched(link: Link, receive: Any, pull: Any, confirm: Any) -> Message:
    message: Message
    message, tree = receive()
    for part in iterate_object_tree(tree):
        pull(link.run, part.object_id)
    confirm(link.run, message.metadata.message_id)
    return message


def _answered(link: Link, reply: Message, send: Any, push: Any) -> None:
    reply.metadata.__dict__["_message_id"] = reply.object_id
    wanted, session = send(reply, get_object_tree(reply), 0.0)
    for name, part in get_all_nested_objects(reply).items():
        if name in wanted:
            push(link.run, session, name, part.deflate())


def crowd(link: Link, grid: HttpGrid) -> Iterator[tuple[str, Spent]]:
    """Yield what the list of nodes costs where they are many."""
    for number in range(NODES):
        _added_node(link, f"site {number}")
    yield f"server asks for the list of {NODES} nodes", spent(link, lambda: grid.get_nodes(), 20)[0]


def codec_costs() -> Iterator[tuple[str, Spent]]:
    """Yield what it costs to encode and to decode 100 MB of a model."""
    source = {f"layer.{i}": torch.randn(_MILLION) for i in range(25)}
    model = {name: tensor + 1 for name, tensor in source.items()}
    for transport in ("fp32", "fp16"):
        before = time.process_time()
        frame = codec.encode({}, {"weights": model}, ["weights"], source, transport)
        middle = time.process_time()
        codec.decode(frame, ["weights"], source, transport)
        yield f"encode 100 MB, {transport}", Spent(0, middle - before)
        yield f"decode 100 MB, {transport}", Spent(0, time.process_time() - middle)


def mask_costs() -> Iterator[tuple[str, Spent]]:
    """Yield what a mask of SecAgg+ costs, for a million parameters; say what it puts on the way."""
    before = time.process_time()
    for _ in range(10):
        (mask,) = pseudo_rand_gen(b"seed" * 8, 2**32, [(_MILLION,)])
    yield "a mask of 1 million parameters", Spent(0, (time.process_time() - before) / 10)
    print(f"SecAgg+: {len(ndarray_to_bytes(mask)) / _MILLION:.2f} bytes a parameter, {_share()} a neighbour")


def _share() -> int:
    """Return the bytes that a client sends a neighbour: shares of its seed and of its key, encrypted."""
    mine, theirs = generate_key_pairs(), generate_key_pairs()
    shares = [create_shares(secret, 2, 3)[0] for secret in (os.urandom(32), private_key_to_bytes(mine[0]))]
    key = generate_shared_key(mine[0], theirs[1])
    return len(encrypt(key, share_keys_plaintext_concat(1, 2, *shares)))


def main() -> None:
    """Print a table."""
    table = Table("what", "SuperLink, ms", "this process, ms")
    with tempfile.TemporaryDirectory() as name, superlink(Path(name)) as link:
        grid = HttpGrid(link.address, insecure=True, token=link.token)
        grid.set_run(link.state.get_run_info(run_ids=[link.run])[0])
        TaskIdentity.task_id, TaskIdentity.run_id = link.task, link.run
        TaskIdentity.node_id = SUPERLINK_NODE_ID
        parts = (idle(link), messages(link, grid), crowd(link, grid), codec_costs(), mask_costs())
        for what, cost in chain(*parts):
            table.add_row(what, f"{1000 * cost.link:.1f}", f"{1000 * cost.here:.1f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
