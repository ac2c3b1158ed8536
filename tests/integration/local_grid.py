"""Flower's Grid without Flower's processes: the sites are in this process, messages are Flower's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedscal.flower.codec import from_records, to_records
from fedscal.flower.site_service import SiteService
from fedscal.runtime.messages import Frame

Tamper = Callable[[dict, bytes], tuple[dict, bytes] | RecordDict | Error | None]
"""Gets the header and the payload of a response; returns others, what is no message of ours, or nothing."""


class LocalGrid(Grid):
    """Answers every message at once; ``tamper`` may change what a node answers."""

    def __init__(self, services: dict[int, SiteService], names: dict[int, str] | None = None) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # no message without them
        self.services = services
        self.names = names or {}
        self.tamper: dict[int, Tamper] = {}
        self.births: dict[int, str] = {}
        self.sent: list[RecordDict] = []
        self.received: list[RecordDict] = []
        self._answers: dict[str, Message | None] = {}

    def set_run(self, run) -> None:
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def send_and_receive(self, *args, **kwargs):
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
        response: object = (frame.header, frame.payload)
        if node in self.tamper:
            response = self.tamper[node](frame.header, frame.payload)
        if response is None:
            return None
        if isinstance(response, Error):
            return Message(response, reply_to=message)
        records = response if isinstance(response, RecordDict) else to_records(Frame(*response))
        self.sent.append(records)
        return Message(records, reply_to=message)


def context(**run_config) -> Context:
    """Return a context with a run's configuration."""
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)
