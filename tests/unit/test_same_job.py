"""What frameworks are compared by: the same step in each, and the memory of all processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import tree
from benchmarks.same_job import job
from benchmarks.same_job.in_fedscal import Entropy

from fedscal.client.term import Objective
from fedscal.client.training import ClientData, Training, batches, local_update
from fedscal.core.rng import Streams
from fedscal.core.types import Package
from fedscal.core.weights import digest, snapshot

_MEGABYTES = 80


def test_a_client_of_ours_and_of_the_others_makes_the_same_step() -> None:
    streams, network, images = Streams(0, "a", 1), job.network(), job.images_of(3)
    package = Package(1, job.LR, {"server": snapshot(network.state_dict())})
    training = Training(epochs=1, momentum=job.MOMENTUM, weight_decay=job.DECAY, clip=job.CLIP)
    data = ClientData(images, job.VIEWS)
    reply, _ = local_update(package, {}, data, Objective((Entropy(),)), training, streams, network)

    other = job.network()
    (order,) = batches(len(images), training.batch_size, streams("order"))
    job.step(other, images[order], streams("weak"))
    assert digest(reply.weights) == digest(snapshot(other.state_dict()))
    assert digest(reply.weights) != digest(package.models["server"])


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux counts it there")
def test_memory_and_time_of_a_process_include_those_of_its_children() -> None:
    child = f"held = bytearray({_MEGABYTES} * 2**20); print('ready', flush=True); input()"
    before, spent = tree.memory(os.getpid()), tree.cpu_seconds(os.getpid())
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", child], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        assert process.pid in tree.descendants(os.getpid())
        assert tree.memory(os.getpid()) >= before + _MEGABYTES / 2, "half, if this process let go of some"
        assert tree.cpu_seconds(os.getpid()) >= spent
        process.communicate("\n")
    assert process.pid not in tree.descendants(os.getpid())
