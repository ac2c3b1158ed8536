"""What the C library does with memory that is freed: it stays with the process.

Activations of a few megabytes come and go with every layer. By default glibc hands them back to the system,
which has to clear their pages before they come again: a sixth of the time in which a trunk computes
features.
"""

from __future__ import annotations

import ctypes
from functools import cache

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""The numbers of these settings in glibc's malloc.h."""
_MEGABYTE = 1 << 20
_SETTINGS = {_TRIM_THRESHOLD: 512 * _MEGABYTE, _TOP_PAD: 64 * _MEGABYTE, _MMAP_THRESHOLD: 32 * _MEGABYTE}
"""Bytes that are kept at the end of the heap, that it grows by, and from which on it is not used."""


@cache
def keep_freed_memory() -> None:
    """Let this process keep what it frees, up to half a gigabyte; other C libraries are left as they are."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # musl, macOS, Windows
        return
    for setting, value in _SETTINGS.items():
        mallopt(setting, value)
