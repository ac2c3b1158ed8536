"""Large packages are imported when they are used, whoever uses them first."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedscal.core.lazy import _Lazy

SLOW = "import time\ntime.sleep(0.3)\nVALUE = 7\n"
LIGHT = """
import sys, fedscal.cli, fedscal.extend
from fedscal.experiment.spec import RunSpec
RunSpec.make(method="fedmoon")
print(sorted({"torch", "numpy", "PIL", "flwr", "matplotlib"} & set(sys.modules)))
"""
RUN = """
import sys, fedscal, fedscal.experiment.run
makers = ("fedscal.paper", *(f"fedscal.data.icons.{name}" for name in ("npm", "archive", "draw")))
print([module for module in sys.modules if module.startswith(makers)])
"""


def test_threads_that_come_together_wait_for_the_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_module.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    lazy, values = _Lazy("slow_module"), []
    threads = [threading.Thread(target=lambda: values.append(lazy.VALUE)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values == [7, 7, 7, 7]
    sys.modules["slow_module"].VALUE = 8  # type: ignore[attr-defined]
    assert lazy.VALUE == 8
    del sys.modules["slow_module"]


@pytest.mark.parametrize("code", [LIGHT, RUN], ids=["no large package for a spec", "no makers for a run"])
def test_what_is_not_needed_is_not_imported(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
