"""What cutting a batch into pieces saves and costs: memory and seconds of a step of the paper's ViT-S/16.

Run with ``python -m benchmarks.micro_batch``. A step is FedSCAl's local update of one batch: weak and strong
views, both forward passes, the loss, the gradient. Each case is a process of its own, whose greatest memory
before and after the step is asked of the system; seconds are those of the processor, so that a busy machine
does not count. Weights are random: they change no time and no size.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import ViTConfig, ViTModel

from fedscal.client.training import ClientData, Training, local_update
from fedscal.core.rng import Streams, compute_threads
from fedscal.core.types import Package
from fedscal.core.weights import snapshot
from fedscal.data.folders.benchmark import PHOTOGRAPHS
from fedscal.methods import build_objective
from fedscal.models.registry import build_network

_BATCH = 16
_SIZES = (0, 8, 4)


def main() -> None:
    """Measure every case and print the table."""
    table = Table("micro_batch", "MB more than before", "CPU seconds", title=f"a step of {_BATCH} images")
    for size in track(_SIZES, "steps", transient=True):
        command = [sys.executable, "-m", "benchmarks.micro_batch", str(size)]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        table.add_row(str(size), f"{found['megabytes']:.0f}", f"{found['seconds']:.1f}")
    Console().print(table)


def measure(size: int) -> dict[str, float]:
    """Return the megabytes and the seconds of one step."""
    with tempfile.TemporaryDirectory() as folder:
        shape = ViTConfig(
            hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536
        )
        ViTModel(shape, add_pooling_layer=False).save_pretrained(folder)
        network = build_network(f"hf:{folder}", (3, 224, 224), 65)
    pixels = torch.randint(256, (_BATCH, 3, 256, 256), dtype=torch.uint8)
    package = Package(1, 0.03, {"server": snapshot(network.state_dict())})
    objective = build_objective("fedscal", "shot", {"tau_init": 0.0})
    training = Training(epochs=1, batch_size=_BATCH, micro_batch=size)
    before, started = _peak(), time.process_time()
    with compute_threads(1):
        local_update(
            package, {}, ClientData(pixels, PHOTOGRAPHS), objective, training, Streams(0, "c", 1), network
        )
    return {"megabytes": _peak() - before, "seconds": time.process_time() - started}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(measure(int(sys.argv[1]))))
    else:
        main()
