"""Requests to nodes and their responses, over Flower's Grid: matched, bounded in time and in size."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedscal.core.errors import FedscalError
from fedscal.core.fields import printable
from fedscal.core.types import Failure
from fedscal.flower.codec import taken_out, to_records
from fedscal.flower.headers import request_header
from fedscal.flower.schema import FAILURE
from fedscal.flower.trace import mark
from fedscal.runtime.messages import FAILED, Frame

_FIRST_POLL, _LAST_POLL = 0.1, 1.0
"""Seconds between two polls for responses: short at first, for a short job, then longer."""
_LOOK = 2.0
"""Seconds between two looks for nodes that were restarted: every request is work for SuperLink."""
_ERRORS = {5: "its machine is gone", 8: "its process ended; out of memory?", 3: "its answer was lost"}
"""What Flower's error codes mean for us."""
_MESSAGE_TYPES = {
    **dict.fromkeys(("hello", "profile", "compare", "statistics"), "query"),
    **{kind: kind for kind in ("train", "evaluate")},
}
T = TypeVar("T")


@dataclass(frozen=True)
class TimedOut(Failure):
    """A node that did not respond in time."""


@dataclass(frozen=True)
class GridTransport:
    """Sends requests to nodes and receives their responses.

    Attributes:
        grid: Flower's connection to the nodes.
        limit: the most bytes that a response may have.
    """

    grid: Grid
    limit: int

    def exchange(
        self,
        nodes: Mapping[str, int],
        encode: Callable[[str], Frame],
        timeout: float,
        read: Callable[[str, Frame], T],
    ) -> Iterator[tuple[str, T | Failure]]:
        """Yield what is read of each response as it comes, or why there is none within ``timeout`` seconds.

        ``encode`` makes the request to a name when it is sent, and is let go of when all are: it may hold a
        model. ``read`` decodes and checks a response; whatever it raises is the failure of that response.
        """
        mark("begun")
        pending: dict[str, str] = {}
        started = dict.fromkeys(nodes.values(), "") | (self._starts() if nodes else {})
        for name, node in nodes.items():  # one by one: a whole round's models at once would fill memory
            if sent := self._push(name, node, encode(name), timeout):
                pending[sent] = name
            else:
                yield name, Failure(name, "the request could not be sent")
        del encode
        looked = time.monotonic()
        end, pause = looked + timeout, _FIRST_POLL
        while pending and time.monotonic() < end:
            for sent, name in list(pending.items()):
                response = self._poll(sent, name, read)
                if response is not None:
                    mark("read", name)
                    del pending[sent]
                    yield name, response
            if pending and time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                for name in self._restarted(nodes, pending.values(), started):
                    pending = {sent: other for sent, other in pending.items() if other != name}
                    yield name, Failure(name, "was restarted in the middle of its work")
            if pending:
                time.sleep(pause)
                pause = min(_LAST_POLL, pause * 1.2)
        for name in pending.values():
            yield name, TimedOut(name, f"did not answer within {timeout:g} s")

    def _push(self, name: str, node: int, frame: Frame, timeout: float) -> str | None:
        """Send a request; return the message's number, if it could be sent."""
        mark(request_header(frame)["kind"], name)
        pushed = list(self.grid.push_messages([_message(frame, node, timeout)]))
        mark("sent", name)
        return pushed[0] if pushed else None

    def _starts(self) -> dict[int, str]:
        """Return when each connected node was started, as far as Flower knows."""
        return {info.node_id: info.last_activated_at for info in self.grid.get_nodes()}

    def _restarted(
        self, nodes: Mapping[str, int], pending: Collection[str], started: Mapping[int, str]
    ) -> list[str]:
        """Return who lost our request: of a node that is back soon enough, Flower reports no error."""
        now = self._starts()
        return [
            name for name in pending if now.get(nodes[name], started[nodes[name]]) != started[nodes[name]]
        ]

    def _poll(self, sent: str, name: str, read: Callable[[str, Frame], T]) -> T | Failure | None:
        """Return what is read of the response to a message, or why it cannot be; None: it is not there yet.

        Each is fetched by itself: Flower unpacks what it fetches, and one that it cannot unpack would take
        the others with it.
        """
        try:
            for message in self.grid.pull_messages([sent]):
                # Flower responds for a dead node itself: only what it is a reply to says who is meant.
                if message.metadata.reply_to_message_id == sent:
                    return self._read(name, message, read)
        except Exception as error:  # one response's exception, whatever it is, is that response's failure
            return Failure(name, describe_error(error))
        return None

    def _read(self, name: str, message: Message, read: Callable[[str, Frame], T]) -> T | Failure:
        if message.has_error():
            code = message.error.code
            reason = _ERRORS.get(code, f"Flower's error code {code}; the log of the site says more")
            return Failure(name, reason)
        return read(name, taken_out(message, self.limit))


class SiteFailed(FedscalError):
    """A site says that it could not do what it was asked for, and why."""


def succeeded(frame: Frame) -> Frame:
    """Return a response; one that says why there is none is raised."""
    if FAILED in frame.header:
        FAILURE.check(frame.header, {})
        raise SiteFailed(str(frame.header[FAILED]))
    return frame


def describe_error(error: Exception) -> str:
    """Say why a response cannot be used; an exception that is not one of ours is named by its kind."""
    kind = "" if isinstance(error, FedscalError) else f"its answer cannot be read: {type(error).__name__}: "
    return printable(f"{kind}{error}")


def _message(frame: Frame, node: int, timeout: float) -> Message:
    header = request_header(frame)
    return Message(
        to_records(frame),
        node,
        _MESSAGE_TYPES[header["kind"]],
        ttl=timeout,  # after that, a site that comes back late does not begin with it any more
        group_id=str(header["scalars"].get("round", "")),
    )
