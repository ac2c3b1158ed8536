"""What a process and all that it started take: memory and processor time, as Linux counts them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _TIMES = 1, slice(11, 15)
"""Where in /proc/PID/stat, after the name, the parent and the four times are: user and system, of the process
and of its children that have ended."""


def memory(root: int) -> float:
    """Return the megabytes that a process and its descendants have of their own: anonymous and shared memory.

    What many processes share counts once. The code of libraries does not count: other programs on the machine
    may have it loaded too.
    """
    return sum(_read(_kilobytes, pid) for pid in descendants(root)) / 1024


def cpu_seconds(root: int) -> float:
    """Return the seconds that a process and its descendants have computed so far."""
    return sum(_read(_ticks, pid) for pid in descendants(root)) / _TICKS


def descendants(root: int) -> list[int]:
    """Return a process and all processes below it that are there now."""
    parents = {pid: int(_read(_parent, pid)) for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))}
    found = [root]
    for pid in found:  # grows while it is gone through
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _read(what: Callable[[int], float], pid: int) -> float:
    """Return a number of a process; 0 if it is gone."""
    try:
        return what(pid)
    except (OSError, IndexError):
        return 0


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parent(pid: int) -> float:
    return int(_stat(pid)[_PARENT])


def _ticks(pid: int) -> float:
    return sum(map(int, _stat(pid)[_TIMES]))


def _kilobytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
