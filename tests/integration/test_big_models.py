"""A large model goes through every driver in a bounded number of copies."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from harness import once
from torch import Tensor, nn

from fedscal.client.training import Training
from fedscal.core import weights
from fedscal.core.types import Failure, Package
from fedscal.methods import build_objective
from fedscal.models.network import Network
from fedscal.runtime.messages import (
    Request,
    Response,
    read_request,
    reply_of,
    training_request,
    write_message,
)
from fedscal.runtime.service import ClientService
from toys import client_data, tiny_network

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="counts pages as Linux does"
)
SIZES = [64, pytest.param(300, marks=pytest.mark.long)]
DONE = "done"
TENSORS = 32
SLACK = 8 / TENSORS + 0.1
"""Of a model: a distance takes one tensor at a time, two of them, their difference and its square in double
precision, eight times a tensor's bytes; and a tenth for whatever Python allocates meanwhile."""


def status(name: str) -> int:
    """Return a number of bytes that the kernel counts of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


@contextmanager
def most(copies: float, size: int) -> Iterator[None]:
    """Let something take at most so many copies of a model of so many MB at a time, beside what is there."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is what is there now
    before = status("VmRSS")
    yield
    taken = (status("VmHWM") - before) / (size * 2**20)
    assert taken <= copies + SLACK


def large(size: int, value: float) -> dict[str, Tensor]:
    """Return a model of so many MB; half of its tensors are kernels of convolutions."""
    numbers = size * 2**18 // TENSORS
    shapes = ((numbers,), (numbers // 4096, 1024, 2, 2))
    return {f"w{n:02}": torch.full(shapes[n % 2], value + n) for n in range(TENSORS)}


class Ballast(nn.Module):
    """A network of few computations and many parameters."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        self.ballast = nn.ParameterDict(large(size, 0.0))

    def forward(self, images: Tensor) -> Tensor:
        """Pass images through the network."""
        made: Tensor = self.network(images)
        return made


def big_network(size: int) -> Network:
    small = tiny_network()
    small.backbone = Ballast(small.backbone, size)
    return small


def through_pipe(write: Callable[[], Request | Response], read: Callable[..., object]) -> object:
    """Let a message go through a pipe, as between a run and its worker processes."""
    there, here = os.pipe()

    def send() -> None:
        with os.fdopen(here, "wb") as stream:
            write_message(stream, write())

    sender = threading.Thread(target=send)
    sender.start()
    with os.fdopen(there, "rb") as stream:
        found = read(stream)
    sender.join()
    return found


def train(network: Network) -> Response | Failure:
    """Let a client train a network from its present weights."""
    data, objective = {"a": client_data(6)}, build_objective("fedscal", "shot", {})
    service = ClientService(data, {}, network, objective, Training(1, 6), seed=0)
    package = Package(1, 0.01, {"server": network.state_dict()})
    return service.handle(training_request("a", package, {}))


def a_client_of_this_process_needs_the_copy_that_it_sends(size: int) -> None:
    """Its reply is a copy of the network, which it trains in place.

    The gradients of the ballast are never made: no loss depends on it.
    """
    train(tiny_network())  # what torch imports for the first training is there now
    network = big_network(size)
    with most(1, size):
        response = train(network)
    assert isinstance(response, Response)
    assert weights.byte_count(reply_of(response)[0].weights) > size * 2**20


def a_message_to_a_worker_process_is_its_bytes_and_the_model_that_is_read(size: int) -> None:
    """The sender's bytes are gone when the reader makes tensors of its own: two at a time in both."""
    package = Package(1, 0.01, {"server": large(size, 1.0)})
    with most(2, size):
        found = through_pipe(lambda: training_request("a", package, {}), read_request)
    assert isinstance(found, Request)
    assert weights.digest(found.tensors["server"]) == weights.digest(package.models["server"])


def over_flower_a_model_is_its_bytes_and_flower_s_and_the_bytes_go_before_the_work(size: int) -> None:
    from flwr.app import Message
    from flwr.supercore.task_identity import TaskIdentity

    from fedscal.flower.client_app import handle_message
    from fedscal.flower.codec import JUDGED, Encoder, decode, to_records
    from fedscal.runtime.messages import Frame

    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # no message without them
    source, model = large(size, 0.0), large(size, 1.0)
    messages = []
    encode = Encoder(source, "fp32")
    with most(2, size):  # the bytes, and the copy of them that Flower's array is
        header = {"kind": "train", "scalars": {}}
        messages.append(Message(to_records(encode(header, {"server": model, JUDGED: model})), 1, "train"))
    del encode

    class Site:
        """Decodes, and notes what is in memory while it works."""

        working = 0

        def handle(self, frame: Frame) -> Frame:
            found = decode(frame, ["server", JUDGED], source, "fp32")
            del frame
            assert found[JUDGED]["w00"] is found["server"]["w00"]
            gc.collect()
            Site.working = status("VmRSS")
            return Frame({})

    before = status("VmRSS")
    with most(1, size):  # Flower's copy goes when the bytes are taken out of it, these when they are decoded
        handle_message(Site, messages.pop())  # type: ignore[arg-type]
    assert Site.working - before <= SLACK * size * 2**20, "of Flower's copy and ours, the model alone is left"


CASES = {
    made.__name__: made
    for made in (
        a_client_of_this_process_needs_the_copy_that_it_sends,
        a_message_to_a_worker_process_is_its_bytes_and_the_model_that_is_read,
        over_flower_a_model_is_its_bytes_and_flower_s_and_the_bytes_go_before_the_work,
    )
}


def said_by(case: str, size: int) -> str:
    """Carry a case out in a fork; return what is wrong."""
    there, here = os.pipe()
    if not os.fork():
        with os.fdopen(here, "w") as told:
            try:
                CASES[case](size)
            except BaseException:
                told.write(traceback.format_exc())
            else:
                told.write(DONE)
        os._exit(0)
    os.close(here)
    with os.fdopen(there) as heard:
        said = heard.read()
    os.wait()
    return said


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_copies_of_a_model(case: str, size: int, shared: Path) -> None:
    """In a process of its own: what others have freed there, or keep, is no copy of the model.

    One that has imported torch and done nothing else is forked for each case.
    """
    if "flower" in case:
        pytest.importorskip("flwr")
    path = os.pathsep.join([*sys.path, str(Path(__file__).parents[1])])
    told = shared / f"copies-{size}.json"

    def ask_all() -> None:
        subprocess.run(
            [sys.executable, __file__, str(size), str(told)],
            env={**os.environ, "PYTHONPATH": path},
            check=True,
        )

    assert json.loads(once(told, ask_all).read_text())[case] == DONE


if __name__ == "__main__":
    size_, told_ = int(sys.argv[1]), Path(sys.argv[2])
    told_.write_text(json.dumps({case: said_by(case, size_) for case in CASES}))
