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


@pytest.mark.long
@pytest.mark.parametrize("method", ["fedscal", "fedmoon"])
def test_two_hundred_clients_take_at_most_a_fifth_more_than_ten(
    cache: Path, tmp_path: Path, method: str
) -> None:
    """FedMOON has all that any method has in memory, and its clients' last models beside it."""
    few, many = tmp_path / "few", tmp_path / "many"
    # The same number of images in a round: a tenth of the clients, ten or two hundred. Seed 6 draws one of
    # the ten twice, without which FedMOON would be refused.
    words = [f"method={method}", "participation=0.1", "seed=6"]
    small = _peak(cache, few, *words, "clients_per_domain=5")
    large = _peak(cache, many, *words, "clients_per_domain=100")
    assert len(rows(many)[0]["clients"]) == 200
    assert len(rows(many)[1]["participants"]) == 20
    assert large <= 1.2 * small, (small, large)
