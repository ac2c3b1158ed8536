"""Flower's ClientApp: a message of the server becomes a request to the client, its answer the reply.

Sites of a deployment answer by their own executor and never load this app from what they were sent;
Flower's simulation loads it from the installed package.
"""

from __future__ import annotations

import logging

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedscal.flower.records import from_records, to_records
from fedscal.flower.simulated import bench
from fedscal.flower.site_service import Bench

_log = logging.getLogger(__name__)
_NOTHING = (8).to_bytes(8, "little") + b"{}      "
"""An empty safetensors file."""
app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def answer(message: Message, context: Context) -> Message:
    """Answer a request of the server as the simulated site that the context names."""
    try:
        return answered_by(bench(context), message)
    except Exception as error:
        return _refused(message, error)


def answered_by(client: Bench, message: Message) -> Message:
    """Answer a request of the server."""
    try:
        return Message(to_records(*client.answer(*from_records(message.content))), reply_to=message)
    except Exception as error:
        return _refused(message, error)


def _refused(message: Message, error: Exception) -> Message:
    """Reply that it went wrong: an error that Flower reports takes its text, paths and all, to the server."""
    _log.exception("the site cannot answer")
    header = {"refused": f"{type(error).__name__}; the log of the site says more"}
    return Message(to_records(header, _NOTHING), reply_to=message)
