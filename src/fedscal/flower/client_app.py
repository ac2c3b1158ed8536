"""Flower's ClientApp: a message of the server becomes a request to the site, its response the reply.

Sites of a deployment respond by their own executor and never load this app from what they were sent;
Flower's simulation loads it from the installed package.
"""

from __future__ import annotations

import logging

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedscal.flower.records import from_records, to_records
from fedscal.flower.simulated import simulated_site
from fedscal.flower.site_service import SiteService
from fedscal.runtime.messages import FAILED, Frame

_log = logging.getLogger(__name__)
app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def handle(message: Message, context: Context) -> Message:
    """Handle a request of the server as the simulated site that the context names."""
    try:
        return handle_message(simulated_site(context), message)
    except Exception as error:
        return _failure(message, error)


def handle_message(site: SiteService, message: Message) -> Message:
    """Handle a request of the server."""
    try:
        return Message(to_records(site.handle(from_records(message.content))), reply_to=message)
    except Exception as error:
        return _failure(message, error)


def _failure(message: Message, error: Exception) -> Message:
    """Reply with a failure: an error that Flower reports takes its text, paths and all, to the server."""
    _log.exception("the site cannot respond")
    header = {FAILED: f"{type(error).__name__}; the log of the site says more"}
    return Message(to_records(Frame(header)), reply_to=message)
