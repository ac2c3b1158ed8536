"""Flower's Grid without Flower's processes: nodes are benches in this process, messages are Flower's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedscal.flower.records import from_records, to_records
from fedscal.flower.site_service import Bench

Tamper = Callable[[dict, bytes], tuple[dict, bytes] | RecordDict | Error | None]


class LocalGrid(Grid):
    """Answers every message at once; ``tamper`` may change what a node answers."""

    def __init__(self, benches: dict[int, Bench], names: dict[int, str] | None = None) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # no message without them
        self.benches = benches
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
        return list(self.benches)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [self._info(node) for node in self.benches]

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
        answer = self.benches[node].answer(*from_records(message.content))
        if node in self.tamper:
            changed = self.tamper[node](*answer)
            if changed is None:
                return None
            if isinstance(changed, Error):
                return Message(changed, reply_to=message)
            answer = changed
        records = answer if isinstance(answer, RecordDict) else to_records(*answer)
        self.sent.append(records)
        return Message(records, reply_to=message)


def context(**run_config) -> Context:
    """Return a context with a run's configuration."""
    return Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=run_config)
