"""Show that a change moves no result: run a fixed set of small experiments, compare with a recorded set.

    python -m tools.same_bits record before.json      # before the change
    python -m tools.same_bits check before.json       # after it

The set: every method with every adaptation on digits, every method on icons, a run that is stopped and
resumed, and a Flower simulation where Ray is installed. For each, the sha256 of the final weights and every
number of ``metrics.jsonl`` but seconds. Equal only on the same kind of CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

METHODS = ("source-only", "loa", "fedloa", "fedprox", "fedmoon", "fedwca", "ladd", "dualadapt", "fedscal")
ADAPTATIONS = ("shot", "bmd", "ucon", "self-training")
_TINY: tuple[str, ...] = (
    "source=optdigits",
    "clients_per_domain=2",
    "participation=1",
    "rounds=2",
    "local_epochs=1",
)
_TINY += ("pretrain_epochs=2", "batch_size=64", "workers=1")
_ICONS = ("benchmark=icons", "rounds=2", "local_epochs=1", "pretrain_epochs=2", "workers=1")
_UNSTABLE = {"seconds", "check", "warnings"}
"""Fields that differ between equal runs, and texts."""


def _numbers(value: Any) -> Any:
    """Return a record without what may differ between two equal runs."""
    if isinstance(value, dict):
        return {key: _numbers(part) for key, part in sorted(value.items()) if key not in _UNSTABLE}
    return [_numbers(part) for part in value] if isinstance(value, list) else value


def _outcome(run: Path) -> dict[str, Any]:
    rows = [_numbers(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {"weights": json.loads((run / "summary.json").read_text())["weights_sha256"], "rows": rows}


def _fedscal(*words: str | Path) -> None:
    command = [sys.executable, "-m", "fedscal", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _plain(*keys: str) -> Callable[[Path], dict[str, Any]]:
    def run(out: Path) -> dict[str, Any]:
        _fedscal("run", "--quiet", "--no-report", "--out", out, *keys)
        return _outcome(out)

    return run


def _resumed(out: Path) -> dict[str, Any]:
    """Stop a run after its first round, resume it."""
    keys = ("method=fedscal", *_TINY, "rounds=4")
    command = [sys.executable, "-m", "fedscal", "run", "--quiet", "--no-report", "--out", str(out), *keys]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (out / "checkpoints" / "round-0001").exists():
        time.sleep(0.01)
    process.kill()
    process.wait()
    _fedscal("run", "--quiet", "--no-report", "--resume", out)
    return _outcome(out)


def _simulated(out: Path) -> dict[str, Any]:
    keys = " ".join(("method=fedscal", *_TINY)).replace("clients_per_domain=2", "clients_per_domain=1")
    home = out.parent / "flwr-home"
    env = {**os.environ, "FLWR_HOME": str(home)}
    command = [
        str(Path(sys.executable).with_name("flwr")),
        "run",
        ".",
        "--stream",
        "--run-config",
        f'keys="{keys}" out="{out}"',
    ]
    subprocess.run(command, check=True, env=env, stdout=subprocess.DEVNULL)
    subprocess.run(["pkill", "-f", str(home)], check=False)
    return _outcome(out)


def experiments() -> Iterator[tuple[str, Callable[[Path], dict[str, Any]]]]:
    """Yield every experiment with its name."""
    for method in METHODS:
        for adaptation in ADAPTATIONS:
            keys = (f"method={method}", f"adaptation={adaptation}", *_TINY)
            yield f"digits/{method}/{adaptation}", _plain(*keys)
    for method in METHODS:
        yield f"icons/{method}", _plain(f"method={method}", *_ICONS)
    yield "resumed", _resumed
    if importlib.util.find_spec("ray"):
        yield "simulated", _simulated


def main() -> int:
    """Record or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="experiments whose name begins so")
    given = parser.parse_args()
    known = json.loads(given.file.read_text()) if given.file.exists() else {}
    compared = differ = 0
    for name, run in experiments():
        if not name.startswith(given.only) or (given.action == "record" and name in known):
            continue
        with tempfile.TemporaryDirectory() as folder:
            outcome = json.loads(json.dumps(run(Path(folder) / "run")))
        if given.action == "record":
            known[name] = outcome
            given.file.write_text(json.dumps(known))
        same = known.get(name) == outcome
        compared, differ = compared + 1, differ + (not same)
        print(f"{outcome['weights'][:16]}  {'' if same else 'DIFFERS  '}{name}", flush=True)
    print(f"{differ} of {compared} differ")
    return int(differ > 0 or not compared)


if __name__ == "__main__":
    sys.exit(main())
