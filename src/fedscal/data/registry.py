"""The table of benchmarks: a new data set is one file and one row here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fedscal.core.errors import UsageError, nearest, shown
from fedscal.data.benchmark import Benchmark
from fedscal.data.cache import with_content
from fedscal.data.digits import DIGITS
from fedscal.data.folders.benchmark import folder_benchmark
from fedscal.data.folders.lists import refuse_pickles
from fedscal.data.icons.benchmark import ICONS, ICONS_64, ICONS_B, ICONS_B_64, ICONS_C, ICONS_C_64
from fedscal.data.remote import PREFIX, sites_benchmark
from fedscal.data.tensors import PREFIX as TENSORS
from fedscal.data.tensors import tensors_benchmark

_ROWS = (DIGITS, ICONS, ICONS_64, ICONS_B, ICONS_B_64, ICONS_C, ICONS_C_64)
BENCHMARKS: dict[str, Benchmark] = {row.name: row for row in _ROWS}


OWN_IMAGES = "fedsite"
"""The method for people's own images."""
_OWN_DEFAULTS: Mapping[str, int | float | str] = {"method": OWN_IMAGES, "least_participants": 10}
"""Own images are at few sites; a share of these would leave some out for rounds: up to ten all take part."""


def defaults_of(name: str) -> Mapping[str, int | float | str]:
    """Return a benchmark's default keys; a folder is not read for them."""
    _refuse_unknown(name)
    if is_folder(name) or name.startswith((PREFIX, TENSORS)):
        return _OWN_DEFAULTS
    return BENCHMARKS[name].defaults if name in BENCHMARKS else {}


def is_folder(name: str) -> bool:
    """Whether a name is a folder's and no registered benchmark's."""
    return bool(name) and name not in BENCHMARKS and Path(name).is_dir()


def benchmark(
    name: str, skip_bad: bool = False, side: int = 0, classes: str = "", source: str = ""
) -> Benchmark:
    """Return the benchmark of this name or folder, or suggest the nearest name.

    For a folder, ``skip_bad`` leaves files out that cannot be read, ``side`` is the size of its views,
    ``classes`` a subset of its classes, and ``source`` the domain that a model is trained on.
    """
    if name.startswith(PREFIX):
        return sites_benchmark(name)
    if name.startswith(TENSORS):
        return tensors_benchmark(name)
    if is_folder(name):
        return folder_benchmark(name, skip_bad, side, classes, source)
    _refuse_unknown(name)
    if classes:
        raise UsageError(
            f"classes={shown(classes)} chooses among a folder's classes, and {name} is no folder."
        )
    return with_content(BENCHMARKS[name])


def _refuse_unknown(name: str) -> None:
    if name.startswith(PREFIX):
        sites_benchmark(name)  # refuses names that cannot be sites'
    elif name.startswith(TENSORS):
        tensors_benchmark(name)  # refuses what is not in the cache
    elif name not in BENCHMARKS and not is_folder(name):
        refuse_pickles(Path(name))
        raise UsageError(
            f"there is no benchmark '{shown(name)}', nor such a folder{nearest(name, BENCHMARKS)}"
        )
