"""Requests to nodes and their answers, over Flower's Grid: matched, bounded in time and in size."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from fedscal.core.errors import FedscalError
from fedscal.core.fields import printable
from fedscal.flower.records import from_records, to_records
from fedscal.flower.schema import REFUSAL

_FIRST_LOOK, _LAST_LOOK = 0.1, 1.0
"""Seconds between two looks for answers: short at first, for a short job, then longer."""
_GONE = {5: "its machine is gone", 8: "its process ended; out of memory?", 3: "its answer was lost"}
"""What Flower's error codes mean for us."""
T = TypeVar("T")
KINDS = {"hello": "query", "profile": "query", "train": "train", "evaluate": "evaluate"}


@dataclass(frozen=True)
class Letter:
    """A request to a node."""

    node: int
    header: Mapping[str, Any]
    payload: bytes


@dataclass(frozen=True)
class Answer:
    """What a node answered: a header and bytes that nobody has looked into yet."""

    header: Mapping[str, Any]
    payload: bytes


@dataclass(frozen=True)
class Post:
    """Carries requests to nodes and brings their answers.

    Attributes:
        grid: Flower's connection to the nodes.
        limit: the most bytes that an answer's tensors may have.
    """

    grid: Grid
    limit: int

    def ask(
        self, letters: Mapping[str, Letter], timeout: float, read: Callable[[str, Answer], T]
    ) -> Iterator[tuple[str, T | str]]:
        """Yield what is read of each addressee's answer as it comes, or a sentence about why there is none.

        Args:
            letters: the requests by addressee.
            timeout: seconds until one that has not answered is given up.
            read: looks into an answer; whatever it raises is that answer's failure.
        """
        pending: dict[str, str] = {}
        born = {letter.node: "" for letter in letters.values()} | (self._births() if letters else {})
        for name, letter in letters.items():  # one by one: a whole round's models at once would fill memory
            pushed = list(self.grid.push_messages([_message(letter, timeout)]))
            if pushed and pushed[0]:
                pending[pushed[0]] = name
            else:
                yield name, "the request could not be sent"
        end, pause = time.monotonic() + timeout, _FIRST_LOOK
        while pending and time.monotonic() < end:
            for sent, name in list(pending.items()):
                found = self._answer(sent, name, read)
                if found is not None:
                    del pending[sent]
                    yield name, found
            for name in self._restarted(letters, pending.values(), born):
                pending = {sent: other for sent, other in pending.items() if other != name}
                yield name, "was restarted in the middle of its work"
            if pending:
                time.sleep(pause)
                pause = min(_LAST_LOOK, pause * 1.2)
        for name in pending.values():
            yield name, f"did not answer within {timeout:g} s"

    def _births(self) -> dict[int, str]:
        """Return when each node that is there was started, as far as Flower knows."""
        return {info.node_id: info.last_activated_at for info in self.grid.get_nodes()}

    def _restarted(
        self, letters: Mapping[str, Letter], pending: Collection[str], born: Mapping[int, str]
    ) -> list[str]:
        """Return who lost our request: of a node that comes back soon enough, Flower says nothing."""
        now = self._births() if pending else {}
        nodes = {name: letters[name].node for name in pending}
        return [name for name, node in nodes.items() if now.get(node, born[node]) != born[node]]

    def _answer(self, sent: str, name: str, read: Callable[[str, Answer], T]) -> T | str | None:
        """Return what is read of the answer to a message, or why it cannot be; None: it is not there yet.

        Each is fetched by itself: Flower unpacks what it fetches, and one that it cannot unpack would take
        the others with it.
        """
        try:
            for message in self.grid.pull_messages([sent]):
                # Flower answers for a dead node itself: only what it is a reply to says who is meant.
                if message.metadata.reply_to_message_id == sent:
                    return self._read(name, message, read)
        except Exception as error:  # one answer's exception, whatever it is, is that answer's failure
            return said(error)
        return None

    def _read(self, name: str, message: Message, read: Callable[[str, Answer], T]) -> T | str:
        if message.has_error():
            code = message.error.code
            return _GONE.get(code, f"Flower's error code {code}; the log of the site says more")
        header, payload = from_records(message.content, self.limit)
        if "refused" in header:
            REFUSAL.check(header, {})
            return str(header["refused"])
        return read(name, Answer(header, payload))


def said(error: Exception) -> str:
    """Say why an answer cannot be used; what is no refusal of ours is named by its kind."""
    kind = "" if isinstance(error, FedscalError) else f"its answer cannot be read: {type(error).__name__}: "
    return printable(f"{kind}{error}")


def _message(letter: Letter, timeout: float) -> Message:
    return Message(
        to_records(letter.header, letter.payload),
        letter.node,
        KINDS[letter.header["do"]],
        ttl=timeout,  # after that, a site that comes back late does not begin with it any more
        group_id=str(letter.header.get("round", "")),
    )
