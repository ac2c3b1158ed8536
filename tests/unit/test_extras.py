"""What is optional: every import of it is guarded by its extra, and every extra that is named exists."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from tools.requirements import CORE, ROOT, brought_by, declared

import fedscal
from fedscal import cli
from fedscal.core import extras
from fedscal.core.errors import UsageError
from fedscal.core.extras import from_extra

SOURCE = ROOT / "src"
NAMED = re.compile(r"(?:fedscal|\.whl|'\.)\[([\w,-]+)\]")


@dataclass(frozen=True)
class Import:
    """An import of our code: who imports what, and the extra that guards it; "" for none."""

    importer: str
    module: str
    extra: str


def guard(node: ast.AST) -> str:
    """Return the extra of ``with from_extra("extra", ...)``; "" for any other statement."""
    call = node.items[0].context_expr if isinstance(node, ast.With) else None
    if not isinstance(call, ast.Call) or ast.unparse(call.func) != "from_extra":
        return ""
    return str(call.args[0].value) if isinstance(call.args[0], ast.Constant) else ""


def imports(node: ast.AST, importer: str, extra: str = "") -> Iterator[Import]:
    """Yield the imports below a node, with the extra around each; those for type checkers are left out."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (Import(importer, alias.name, extra) for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{importer}: a relative import"
        yield Import(importer, str(node.module), extra)
        yield from (Import(importer, f"{node.module}.{alias.name}", extra) for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child, importer, guard(node) or extra)


def module_name(path: Path) -> str:
    """Return the dotted name of a file of ours."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
IMPORTS = [found for name, tree in MODULES.items() for found in imports(tree, name)]


distributions = cache(metadata.packages_distributions)
all_brought_by = cache(brought_by)


def brings(part: str, module: str) -> bool:
    """Whether the core or an extra brings the distribution of a module."""
    top = module.partition(".")[0]
    names = {canonicalize_name(name) for name in distributions().get(top, [top])}
    return bool(names & all_brought_by(part))


def foreign(module: str) -> bool:
    """Whether a module is of another distribution than ours and Python's own."""
    return module.partition(".")[0] not in {"fedscal", *sys.stdlib_module_names} and not brings(CORE, module)


@cache
def optional() -> list[Import]:
    """Return the imports of what may not be installed."""
    return [found for found in IMPORTS if foreign(found.module)]


COMMANDS = {f"fedscal.cli.{where.partition(':')[0]}" for where, _ in cli._COMMANDS.values()}
ENTRANCES = ["fedscal.__main__", "fedscal.experiment.worker", *COMMANDS, *fedscal._HOMES]


def reached() -> set[str]:
    """Return the modules of ours that are imported, now or later, without the guard of an extra."""
    found, waiting = set(), list(ENTRANCES)
    while waiting:
        name = waiting.pop()
        if name in MODULES and name not in found:
            found.add(name)
            waiting.append(name.rpartition(".")[0])
            waiting += [one.module for one in IMPORTS if one.importer == name and not one.extra]
    return found


def test_what_is_reached_without_an_extra_imports_nothing_that_an_extra_brings() -> None:
    free = reached()
    assert {"fedscal.cli.use", "fedscal.data.folders.decode", "fedscal.models.huggingface"} <= free
    assert not [found for found in optional() if found.importer in free and not found.extra]


def test_the_guards_are_seen() -> None:
    """Without this the test above could pass because it looks at nothing."""
    assert {found.extra for found in optional()} >= {"icons", "hf", "onnx", "timm", "efficientnet", "flower"}
    assert {found.extra for found in IMPORTS if found.module == "fedscal.report.page"} == {"report"}
    assert "fedscal.report.page" not in reached()


def test_an_extra_brings_what_it_guards() -> None:
    assert not [one for one in optional() if one.extra and not brings(one.extra, one.module)]


def test_extras_that_are_named_exist() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *SOURCE.rglob("*.py"), ROOT / "Makefile"]
    named = {
        (path.name, extra)
        for path in pages
        for found in NAMED.finditer(path.read_text())
        for extra in found[1].split(",")
    }
    assert {("README.md", "digits"), ("deploy.md", "flower")} <= named
    assert not {(page, extra) for page, extra in named if extra not in declared()}
    assert {found.extra for found in IMPORTS} <= {"", *declared()}


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(UsageError) as caught, from_extra("onnx", "ONNX"):
        import no_such_package.part  # type: ignore[import-not-found]  # noqa: F401
    assert str(caught.value) == "ONNX needs no_such_package: pip install 'fedscal[onnx]'"
    assert caught.value.exit_code == 2


def test_a_package_that_is_broken_says_why() -> None:
    said = r"^ONNX cannot import json \(cannot import name 'no_such'.*: pip install 'fedscal\[onnx\]'$"
    with pytest.raises(UsageError, match=said), from_extra("onnx", "ONNX"):
        from json import no_such  # type: ignore[attr-defined]  # noqa: F401


def test_a_module_of_ours_that_is_missing_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError), from_extra("onnx", "ONNX"):
        import fedscal.no_such_module  # type: ignore[import-not-found]  # noqa: F401


def test_the_doctor_looks_through_the_extras_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {
        "fedscal": ["torch>=2", "flwr[simulation]>=1; extra == 'sim'", "torch; extra == 'gpu'"],
        "flwr": ["nothing-here==1 ; python_version > '3' and extra == 'simulation'", "other; extra == 'x'"],
    }
    monkeypatch.setattr(metadata, "requires", needs.get)
    monkeypatch.setattr(metadata, "version", {"flwr": "1", "torch": "2"}.__getitem__)
    monkeypatch.setattr(metadata, "PackageNotFoundError", KeyError)
    assert extras.missing("sim") == ["nothing-here"]
    assert extras.missing("gpu") == []


def test_the_extras_of_users_are_those_of_pyproject() -> None:
    assert set(extras.known()) == declared().keys() - {CORE, "dev", "docs"}


def test_the_page_on_installation_has_a_row_for_every_extra() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert sorted(rows) == extras.known()
