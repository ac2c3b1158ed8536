"""Flower's Grid without Flower's processes: the sites are in this process, messages are Flower's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, Protocol

from flower_world import World
from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedscal.flower.codec import from_records, to_records
from fedscal.flower.launch import describe_site
from fedscal.flower.processes import SiteDescription
from fedscal.flower.site_service import SiteService
from fedscal.runtime.messages import Frame

Header = Mapping[str, Any]
Answer = tuple[Header, bytes] | RecordDict | Error | None
"""The header and the payload of a response, what is no message of ours, or nothing."""
Tamper = Callable[[Header, bytes], Answer]
"""Gets the header and the payload of a response; returns what is sent in their place."""


class Site(Protocol):
    """What answers requests: a site's service, or a test's own."""

    def handle(self, frame: Frame, /) -> Frame: ...


class LocalGrid(Grid):
    """Answers every message at once; ``tamper`` may change what a node answers."""

    def __init__(self, services: Mapping[int, Site], names: dict[int, str] | None = None) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # no message without them
        self.services = dict(services)
        self.names = names or {}
        self.tamper: dict[int, Tamper] = {}
        self.births: dict[int, str] = {}
        self.sent: list[RecordDict] = []
        self.received: list[RecordDict] = []
        self._answers: dict[str, Message | None] = {}

    def set_run(self, run: Run) -> NoReturn:
        raise NotImplementedError

    @property
    def run(self) -> NoReturn:
        raise NotImplementedError

    def create_message(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError

    def send_and_receive(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.services)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [self._info(node) for node in self.services]

    def _info(self, node: int) -> NodeInfo:
        return NodeInfo(
            node_id=node, name=self.names.get(node, ""), last_activated_at=self.births.get(node, "")
        )

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            self.received.append(message.content)
            ids.append(message.object_id)
            self._answers[message.object_id] = self._answer(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [self._answers.pop(name) for name in message_ids if name in self._answers]
        return [message for message in found if message is not None]

    def _answer(self, message: Message) -> Message | None:
        node = message.metadata.dst_node_id
        frame = self.services[node].handle(from_records(message.content))
        response: Answer = (frame.header, frame.payload)
        if node in self.tamper:
            response = self.tamper[node](frame.header, frame.payload)
        if response is None:
            return None
        if isinstance(response, Error):
            return Message(response, reply_to=message)
        records = response if isinstance(response, RecordDict) else to_records(Frame(*response))
        self.sent.append(copy.deepcopy(records))  # who reads a message empties it
        return Message(records, reply_to=message)


def context(**run_config: bool | float | int | str) -> Context:
    """Return a context with a run's configuration."""
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)


def new_service(world: World, tmp_path: Path, site: str, folder: str = "") -> SiteService:
    """Return the service of a site of the world, its state in a folder of the test's."""
    state = tmp_path / (folder or f"state-{site}")
    describe_site(site, world.data(site), {"source_model": str(world.model)}, state)
    return site_service(state)


def site_service(state: Path) -> SiteService:
    """Return the service of a site that was described in a state folder."""
    described = SiteDescription.read(state)
    return SiteService(described.name, described.keys, state)
