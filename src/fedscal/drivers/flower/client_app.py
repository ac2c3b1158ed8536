"""Flower's ClientApp: passes a request on to the site's bench, and its answer back.

Flower starts a process for every message. Where ``fedscal flower site`` runs, a resident process
holds torch, the images and the network, and this one only carries bytes; it must not import torch.
"""

from __future__ import annotations

import logging
import socket
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedscal.drivers.flower.records import from_records, to_records
from fedscal.drivers.frames import read_frame, stream_of, write_frame

_log = logging.getLogger(__name__)
_NOTHING = (8).to_bytes(8, "little") + b"{}      "
"""An empty safetensors file."""
app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer a request of the server."""
    try:
        header, payload = _answer(*from_records(message.content), context)
    except Exception as error:  # an error that Flower reports takes its text, paths and all, to the server
        _log.exception("the site cannot answer")
        header, payload = {"refused": f"{type(error).__name__}; the log of the site says more"}, _NOTHING
    return Message(to_records(header, payload), reply_to=message)


def _answer(header: dict[str, Any], payload: bytes, context: Context) -> tuple[dict[str, Any], bytes]:
    place = context.node_config.get("socket")
    if place:
        return _ask_resident(str(place), header, payload)
    from fedscal.drivers.flower.simulated import bench  # torch, where there is no resident to hold it

    return bench(context).answer(header, payload)


def _ask_resident(place: str, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        with stream_of(connection) as stream:
            write_frame(stream, header, payload)
            found = read_frame(stream)
    if found is None:
        raise ConnectionError("the site's resident process ended; out of memory?")
    return found
