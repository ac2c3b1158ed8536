"""Ask an advisory service about the distributions of constraints.txt, where one can be reached.

pip-audit ends with code 1 both for a vulnerability and for a service that is out of reach, and with code 0
for a mirror that knows no advisories and answers 404 to every question. What it found is told apart here: 1
for a vulnerability or a failure of its own, 0 with a sentence for questions that nobody answered.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

from tools.requirements import ROOT

_COMMAND = [sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / "constraints.txt")]
_COMMAND += ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
_OUT_OF_REACH = re.compile(
    r"^requests\.exceptions\.\w+:|Could not connect to|not redirecting properly|\bServiceError\b",
    re.MULTILINE,
)
_SKIPPED = "not audited: no advisory service could be reached from here."


def main() -> int:
    """Run pip-audit, print what came of it, and return the exit code."""
    done = subprocess.run(_COMMAND, capture_output=True, text=True, check=False)
    code, text = verdict(done.stdout, done.stderr)
    print(text)
    return code


def verdict(out: str, err: str) -> tuple[int, str]:
    """Return exit code and words for what pip-audit printed."""
    try:
        answers = json.loads(out)["dependencies"]
    except ValueError:
        return (0, _SKIPPED) if _OUT_OF_REACH.search(err) else (1, f"pip-audit failed: {err.strip()[-1000:]}")
    answered = [entry for entry in answers if "vulns" in entry]
    found = [line for entry in answered for line in _lines(entry)]
    if found:
        return 1, "\n".join(found)
    if not answered:
        return 0, _SKIPPED
    return 0, f"no known vulnerability in {len(answered)} of {len(answers)} distributions; {_rest(answers)}"


def _lines(entry: dict[str, Any]) -> list[str]:
    return [
        f"{entry['name']} {entry['version']}: {one['id']}, mended in {', '.join(one['fix_versions'])}"
        for one in entry["vulns"]
    ]


def _rest(answers: list[dict[str, Any]]) -> str:
    unknown = [entry["name"] for entry in answers if "vulns" not in entry]
    return f"nobody knows {', '.join(unknown)}" if unknown else "all were asked about"


if __name__ == "__main__":
    sys.exit(main())
