"""Freed memory stays with the process, so that its pages need not be cleared again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_PAGES = 20 * 16 * 2 * 256
"""Of what the program below touches: 20 times 16 arrays of 2 MB, in pages of 4 kB."""
_PROGRAM = """
import resource, sys
import numpy as np
from fedscal.core.heap import keep_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    arrays = [np.ones(2 << 17) for _ in range(16)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _page_faults(*argv: str) -> int:
    program = [sys.executable, "-c", _PROGRAM, *argv]
    return int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_pages_that_were_freed_are_not_fetched_again() -> None:
    assert _page_faults() > _PAGES / 2, "the C library keeps them by itself: keep_freed_memory is not needed"
    assert _page_faults("keep") < _PAGES / 10
