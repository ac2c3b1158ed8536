"""How far ``fedscal reproduce --estimate`` is from what the runs of a table take, in seconds of CPU time.

``python -m benchmarks.estimate`` rehearses a part of the Office-31 table in a temporary directory: first the
estimate, then the runs, one after the other in this process. CPU time is compared, so that the machine may be
busy. Not counted are source models, as in the estimate's rows, and the start of a process.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedscal.experiment.experiment import Experiment
from fedscal.experiment.run import adapt
from fedscal.experiment.source import source_model
from fedscal.paper import rehearsal
from fedscal.paper.datasets import locate
from fedscal.paper.estimate import estimate
from fedscal.paper.stand_ins import stand_in
from fedscal.paper.tables import Entry, datasets_of, entries, table

_SHARE = 0.2
_KEYS = {
    "methods": "source-only,fedloa,fedmoon,fedwca,ladd,fedscal",
    "sources": "DSLR",
    "image_size": 112,
    "local_epochs": 2,
    "pretrain_epochs": 1,
    "workers": 1,
}


def planned(out: Path) -> list[Entry]:
    """Draw the images and return the runs."""
    blocks = table("office-31")
    tree = stand_in("office-31", out, _SHARE)
    tree.draw(tree.missing(), 1, lambda: None)
    return entries(blocks, locate(datasets_of(blocks), [tree.root]), rehearsal.keys(blocks, _KEYS, out), out)


def cpu_seconds(entry: Entry) -> float:
    """Make a run and return its CPU time."""
    source_model(Experiment.build(entry.cell.spec))  # kept for the others, and not counted
    before = time.process_time()
    adapt(entry.cell.spec, entry.cell.directory.path)
    return time.process_time() - before


def main() -> None:
    """Print estimate and truth of every row."""
    with tempfile.TemporaryDirectory() as folder, rehearsal.own_cache(Path(folder)):
        runs = planned(Path(folder))
        said = estimate(runs)
        took = {entry.variant.title: cpu_seconds(entry) for entry in track(runs, "running")}
    shown = Table("method", "estimated s", "took s", "estimate / truth")
    expected = {row.partition(": ")[2]: seconds for row, seconds in said.seconds.items()}
    pairs = {name: (expected[name], truth) for name, truth in took.items()}
    pairs["together"] = sum(expected.values()), sum(took.values())
    for name, (guess, truth) in pairs.items():
        shown.add_row(name, f"{guess:.1f}", f"{truth:.1f}", f"{guess / truth:.2f}")
    console = Console()
    console.print(shown)
    console.print(*said.pace.values())


if __name__ == "__main__":
    main()
