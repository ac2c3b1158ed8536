"""Main memory does not grow with the number of clients."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import DIGITS, rows, start_program


def _peak(cache: Path, out: Path, *words: str) -> int:
    """Return the largest resident size of a run, in kB."""
    process = start_program(cache, "run", *DIGITS, *words, "--quiet", "--no-report", "--out", out)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedscal", "fedmoon"])
def test_two_hundred_clients_take_at_most_a_fifth_more_than_ten(cache, tmp_path, method):
    few, many = tmp_path / "few", tmp_path / "many"
    # The same number of images in a round: a tenth of the clients, ten or two hundred.
    small = _peak(cache, few, f"method={method}", "clients_per_domain=5", "participation=0.1")
    large = _peak(cache, many, f"method={method}", "clients_per_domain=100", "participation=0.1")
    assert len(rows(many)[0]["clients"]) == 200
    assert len(rows(many)[1]["participants"]) == 20
    assert large <= 1.2 * small, (small, large)
