"""``python_with_tiny [-P] -m MODULE ARGUMENTS``: run a module after the tiny benchmarks were registered."""

import os
import runpy
import sys

import tiny

from fedscal.data.registry import BENCHMARKS

if __name__ == "__main__":
    BENCHMARKS.update(tiny.benchmarks())
    exec(os.environ.get("TEST_BEFORE", ""), {})  # a test's own sabotage
    module, *arguments = sys.argv[sys.argv.index("-m") + 1 :]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
