"""Flower's ClientApp: a message of the server becomes a request to the site, its response the reply.

Sites of a deployment respond by their own executor and never load this app from what they were sent;
Flower's simulation loads it from the installed package. It numbers the nodes, and node i is the i-th
client of the run's data set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedscal.core.errors import UsageError
from fedscal.experiment.experiment import Experiment
from fedscal.flower.codec import taken_out, to_records
from fedscal.flower.site_service import SiteService, run_directory, run_spec
from fedscal.runtime.messages import FAILED, Frame

_log = logging.getLogger(__name__)
app = ClientApp()


@app.train()
@app.evaluate()
@app.query()
def handle(message: Message, context: Context) -> Message:
    """Handle a request of the server as the simulated site that the context names."""
    return handle_message(lambda: simulated_site(context), message)


def handle_message(site: Callable[[], SiteService], message: Message) -> Message:
    """Handle a request of the server.

    An error that Flower reports takes its text, paths and all, to the server; ours names its kind only.
    """
    try:
        response = site().handle(taken_out(message))
    except Exception as error:
        _log.exception("the site cannot respond")
        response = Frame({FAILED: f"{type(error).__name__}; the log of the site says more"})
    return Message(to_records(response), reply_to=message)


def simulated_site(context: Context) -> SiteService:
    """Return the service of a simulated node, kept as long as its process lives."""
    if "partition-id" not in context.node_config:
        raise UsageError("this SuperNode was not started by 'fedscal flower site'")
    number = int(context.node_config["partition-id"])
    return _site(str(context.run_config["keys"]), run_directory(context), number)


@lru_cache(maxsize=16)
def _site(keys: str, out: Path, number: int) -> SiteService:
    spec = run_spec(keys)
    clients = Experiment.build(spec).clients_of_data().clients
    if number >= len(clients):
        raise UsageError(f"node {number} has no client: the run has {len(clients)}")
    return SiteService(clients[number], spec.all_keys(), out / "sites" / clients[number])
