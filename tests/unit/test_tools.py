"""The tools: licences are listed and allowed, what is brought is pinned, an audit is read aright."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from tools import licences
from tools.audit import verdict
from tools.requirements import CORE, brought_by, declared, pins

MENDED = {"id": "PYSEC-1", "fix_versions": ["13.1"]}
REFUSED = "requests.exceptions.ConnectionError: HTTPSConnectionPool(...): Max retries exceeded"


def test_the_page_of_licences_is_up_to_date() -> None:
    assert licences.PAGE.read_text() == licences.page(), "make licences"


@pytest.mark.parametrize("name", pins())
def test_no_licence_is_forbidden(name: str) -> None:
    assert not licences.FORBIDDEN.search(licences.licence(name))


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        ("GPL-3.0-only", True),
        ("AGPL-3.0", True),
        ("GNU General Public License v3 (GPLv3)", True),
        ("GNU Affero General Public License v3", True),
        ("LGPL-2.1", False),
        ("GNU Lesser General Public License v3 (LGPLv3)", False),
        ("MPL-2.0 AND MIT", False),
    ],
)
def test_forbidden_licences_are_known_by_their_names(text: str, forbidden: bool) -> None:
    assert bool(licences.FORBIDDEN.search(text)) is forbidden


def test_what_is_brought_is_pinned() -> None:
    unpinned = brought_by(*declared()) - pins().keys()
    assert unpinned == {"pip", "ray", "timm"}  # pip is whoever installs; for the others see docs/licences.md


def test_the_core_is_light() -> None:
    assert {"torch", "pillow", "typer"} <= brought_by(CORE)
    assert not {"matplotlib", "scikit-learn", "transformers", "flwr", "onnx"} & brought_by(CORE)


def printed(*entries: Mapping[str, object]) -> str:
    return json.dumps({"dependencies": entries, "fixes": []})


KNOWN = {"name": "pillow", "version": "13.0.0", "vulns": []}
BAD = {"name": "pillow", "version": "13.0.0", "vulns": [MENDED]}
UNKNOWN = {"name": "torch", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("out", "err", "code", "said"),
    [
        (printed(KNOWN), "", 0, "no known vulnerability in 1 of 1 distributions"),
        (printed(KNOWN, UNKNOWN), "", 0, "in 1 of 2 distributions; nobody knows torch"),
        (printed(BAD, UNKNOWN), "Found 1 known vulnerability", 1, "pillow 13.0.0: PYSEC-1, mended in 13.1"),
        (printed(UNKNOWN), "No known vulnerabilities found", 0, "not audited"),
        ("", f"Traceback (most recent call last):\n{REFUSED}", 0, "not audited"),
        ("", "ERROR:pip_audit._cli:Could not connect to the vulnerability feed", 0, "not audited"),
        ("", "pip_audit._service.interface.ServiceError", 0, "not audited"),
        ("", "ERROR:pip_audit._cli:requirement nonsense is not pinned", 1, "nonsense is not pinned"),
        ("", "No module named pip_audit", 1, "pip-audit failed"),
    ],
)
def test_an_audit_fails_for_a_vulnerability_and_not_for_a_silent_service(
    out: str, err: str, code: int, said: str
) -> None:
    found, text = verdict(out, err)
    assert found == code
    assert said in text
