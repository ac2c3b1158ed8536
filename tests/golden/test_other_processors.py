"""A test of the tests: what was measured on one processor holds with the arithmetic of others.

torch, MKL and oneDNN choose their kernels by the processor, and can be told to choose others. A test
that compares numbers of a training with numbers in its source belongs into ``MEASURED``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MEASURED = (f"{HERE / 'test_golden_runs.py'}::test_a_run_gives_the_numbers_that_were_measured",)
OTHERS = (
    {"ATEN_CPU_CAPABILITY": "default"},
    {"ATEN_CPU_CAPABILITY": "avx2"},
    {"ATEN_CPU_CAPABILITY": "avx512"},
    {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},  # heeded on Intel's processors only
    {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    {"MKL_CBWR": "COMPATIBLE"},  # heeded on all
    {"DNNL_MAX_CPU_ISA": "SSE41"},
    {"DNNL_MAX_CPU_ISA": "AVX2"},
    {"OMP_NUM_THREADS": "2"},
)
OLDEST = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "DNNL_MAX_CPU_ISA": "SSE41"}
_PROGRAM = """
import sys, pytest, torch
print("kernels", torch.backends.cpu.get_cpu_capability())
sys.exit(pytest.main(sys.argv[1:]))
"""


def name(forced: dict[str, str]) -> str:
    return "+".join(f"{variable}={value}" for variable, value in forced.items())


def lacks(kernels: str) -> bool:
    """Whether this processor would die of kernels with this name."""
    path = Path("/proc/cpuinfo")
    return not path.exists() or kernels not in path.read_text()


@pytest.mark.parametrize(
    "forced", [OLDEST, *(pytest.param(other, marks=pytest.mark.long) for other in OTHERS)], ids=name
)
def test_numbers_that_were_measured_hold_with_other_kernels(forced: dict[str, str]) -> None:
    kernels = forced.get("ATEN_CPU_CAPABILITY", "default")
    if kernels != "default" and lacks(kernels):
        pytest.skip(f"this processor has no {kernels}")
    own = {variable: value for variable, value in os.environ.items() if not variable.startswith("PYTEST")}
    argv = [sys.executable, "-c", _PROGRAM, "-q", "-p", "no:cacheprovider", *MEASURED]
    done = subprocess.run(argv, env=own | forced, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if "ATEN_CPU_CAPABILITY" in forced:
        assert f"kernels {kernels.upper()}\n" in done.stdout, "the kernels were not forced"
