"""Files that somebody else wrote, with anything in them: each is refused or borne, in words and in time."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from harness import TINY, Copy, Zygote, contents

from fedscal.compare import tables as compare_tables
from fedscal.compare.execute import Cell
from fedscal.core.documents import sealed
from fedscal.core.errors import FedscalError
from fedscal.data.registry import BENCHMARKS
from fedscal.deploy.card import card_text, run_of
from fedscal.deploy.classifier import Classifier
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.load import load_run
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec, read_recipe
from fedscal.report import page

DEEP = 100_000
BAD_TEXTS = {
    "empty": b"",
    "no text": bytes(range(256)),
    "NULs": bytes(1000),
    "deep lists": b"[" * DEEP,
    "deep lists, closed": b"[" * DEEP + b"]" * DEEP,
    "deep tables": b'{"a":' * DEEP,
    "as deep as Python goes": b"[" * 900 + b"]" * 900,
    "a huge number": b"1" * 5000,
    "a number in a table": b'{"round": ' + b"9" * 5000 + b"}",
    "a long float": b'{"round": 0.' + b"1" * 1_000_000 + b"}",
    "a list": b"[1, 2, 3]",
    "a word": b'"word"',
    "null": b"null",
    "half": b'{"round": ',
    "two": b"{}{}",
    "an empty table": b"{}",
    "lone surrogate": b'{"round": 0, "classes": ["\\ud800"]}',
    "a key of megabytes": b'{"' + b"k" * 2_000_000 + b'": 1}',
}
BAD_RECIPES = {
    "400 zeros": b"lr = 1" + b"0" * 400,
    "5,000 digits": b"rounds = " + b"9" * 5000,
    "4,000 digits": b"rounds = " + b"9" * 4000,
    "huge hexadecimal": b"rounds = 0x" + b"f" * 5000,
    "infinite": b"lr = inf",
    "not a number": b"lr = nan",
    "deep list": b"lr = " + b"[" * DEEP,
    "deep list, closed": b"lr = " + b"[" * DEEP + b"]" * DEEP,
    "deep inline table": b"lr = " + b"{a = " * 50_000,
    "deep heading": b"[" + b".".join([b"a"] * DEEP) + b"]\nlr = 1",
    "deep key": b".".join([b"a"] * DEEP) + b" = 1",
    "deep quoted key": b".".join([b'"a"'] * DEEP) + b" = 1",
    "deep key in a table": b"lr = {" + b" . ".join([b"a"] * 50_000) + b" = 1}",
    "a date": b"lr = 1979-05-27",
    "a table": b"[lr]\nx = 1",
    "a list": b"lr = [1, 2]",
    "long text": b'method = "' + b"m" * 20_000 + b'"',
    "long key": b"k" * 20_000 + b" = 1",
    "escapes": b'method = "\\u001b[31m\\u000aerror: fedscal ended"',
    "twice": b"lr = 1\nlr = 2",
    "too large": b"#" * 1_000_001,
    "no TOML": b"lr = ",
    "grids": b"grid = 3",
}
BAD_VALUES: list[object] = [
    *(None, True, -1, 0, 2**62, 10**30, 1e308, -0.5, math.nan, math.inf, "", "x", "x" * 20_000, "\ud800"),
    *([], [[]], ["a", "a"], [1, "x"], [-1, 0, 2], {}, {"a": {}}, {"": [None]}),
]
SAMPLES = [12, pytest.param(300, marks=pytest.mark.long)]
"""Documents of each kind that a run of the tests tries; all of them were tried when they were written."""
Read = Callable[[Path], object]
Spoil = Callable[[str, bytes], None]
"""Writes bytes in place of a file of the run."""


@pytest.fixture(scope="module")
def run(tiny_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose files may be damaged one by one."""
    return Path(shutil.copytree(tiny_runs["fedmoon"], tmp_path_factory.mktemp("hostile") / "run"))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let the readers of this process see what the forked program saw."""
    monkeypatch.setenv("FEDSCAL_CACHE", str(request.getfixturevalue("shared") / "cache"))
    for name, benchmark in tiny.benchmarks().items():
        monkeypatch.setitem(BENCHMARKS, name, benchmark)
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def outcome(read: Read, path: Path) -> str:
    """Return what a reader says, warning or error, after a look at its form; empty if it says nothing."""
    started = time.monotonic()
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", UserWarning)
            read(path)
        return "".join(str(one.message) for one in heard)
    except FedscalError as error:
        refused = error
    finally:
        assert time.monotonic() - started < 20
    text = str(refused)
    assert refused.exit_code in (2, 3, 4), text
    assert len(text) < 2500, text
    assert "\n" not in text
    return text


def resumed(path: Path) -> None:
    """Read all that a run that goes on reads, and restore the files that this removes."""
    directory = RunDirectory(path)
    directory.differences(Experiment.build(directory.spec()))
    before = contents(path)
    try:
        directory.go_back()
    finally:
        for name in before.keys() - contents(path).keys() | {"metrics.jsonl"}:
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_bytes(before[name])


def compared(path: Path) -> None:
    """Make the tables of a comparison with this run in it."""
    cells = [Cell(RunSpec.make(benchmark="tiny", method="fedmoon"), RunDirectory(path))]
    compare_tables.summaries(cells)
    compare_tables.all_tables(cells, None)


def reported(path: Path) -> None:
    """Make the page of a run."""
    page.report_page(load_run(path)).encode(errors="replace")


def noted(path: Path) -> None:
    """Make the page of a run, and say what it says about a file that it left out."""
    said = page.report_page(load_run(path))
    for text in ("answers.json cannot be read", "answers.json contradicts itself"):
        if text in said:
            warnings.warn(text, stacklevel=2)


def reported_together(path: Path) -> None:
    """Make the page of a comparison of a run with itself."""
    page.comparison_page([load_run(path)] * 2).encode(errors="replace")


def exported(path: Path) -> None:
    """Open a model as predict does, and write its card."""
    classifier = Classifier.open(path)
    assert all(isinstance(name, str) for name in classifier.classes)
    assert classifier.module.network.head.out_features == len(classifier.classes)
    assert all(isinstance(side, int) and side > 0 for side in classifier.shape)
    card_text(classifier, run_of(classifier)).encode()


READERS: dict[str, tuple[Read, ...]] = {
    "spec.toml": (resumed, reported, exported),
    "metrics.jsonl": (resumed, reported, exported),
    "summary.json": (compared, reported, exported),
    "environment.json": (resumed, reported, exported),
    "audit.json": (reported, reported_together, exported),
    "answers.json": (noted,),
    "model/last.json": (exported,),
    "model/source.json": (exported,),
    "checkpoints/round-0003/manifest.json": (resumed,),
}
AUDIT = {
    "model_sha256": "",
    "sites": [
        {
            "site": "b",
            "images": 3,
            "adapted": {"right": 1, "accuracy": 33.3, "interval_95": [6.0, 79.0]},
            "source": {"right": 1, "accuracy": 33.3, "interval_95": [6.0, 79.0]},
            "fixed": 1,
            "regressed": 1,
            "p": 1.0,
        }
    ],
    "model": "last.safetensors",
    "verdict": "unsure",
    "sentence": "No difference.",
    "seen": {"adapted_to": 2, "source": 1},
    "answers": {"b": {"00ff": True, "01ff": False, "02ff": False}},
}

LABELLED = {
    "confusion": [[2, 1], [0, 3]],
    "bins": {"images": [1, 5], "confidence": [0.3, 0.9], "right": [0.0, 1.0]},
    "calibration_error": 0.2,
}
ANSWERS = {
    "classes": ["a", "b"],
    "model_sha256": "",
    "round": 2,
    "domains": {
        "x": {
            "images": 6,
            "changed": 1,
            "predicted_before": [2, 4],
            "predicted_after": [3, 3],
            "before": LABELLED,
            "after": LABELLED,
        },
        "y": {"images": 1, "changed": 0, "predicted_before": [1, 0], "predicted_after": [1, 0]},
    },
    "projection": "t-SNE",
    "points": [{"domain": "x", "before": [0.0, 1.0], "after": [1.0, 0.0], "answer": 1, "label": 0}],
    "examples": [
        {
            "kind": "changed",
            "domain": "x",
            "client": "x-0",
            "name": "1.png",
            "before": "a",
            "after": "b",
            "confidence": 0.5,
            "label": "a",
            "png": "iVBORw0KGgo",
        }
    ],
}


@pytest.fixture
def spoil(run: Path) -> Iterator[Spoil]:
    """Write bytes in place of a file of the run, for one test."""
    before: dict[Path, bytes | None] = {}

    def write(name: str, data: bytes) -> None:
        path = run / name
        before.setdefault(path, path.read_bytes() if path.exists() else None)
        path.write_bytes(data)

    yield write
    for path, data in before.items():
        path.unlink(missing_ok=True)
        if data is not None:
            path.write_bytes(data)


def test_no_recipe_is_taken_for_a_bug(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    for name, data in BAD_RECIPES.items():
        path.write_bytes(data)
        assert outcome(lambda path: RunSpec.make(**read_recipe(path)), path), name


@pytest.mark.parametrize("name", READERS)
def test_no_bytes_in_a_file_of_a_run_are_taken_for_a_bug(name: str, run: Path, spoil: Spoil) -> None:
    for data in (BAD_RECIPES if name.endswith(".toml") else BAD_TEXTS).values():
        spoil(name, data + b"\n")
        for read in READERS[name]:
            outcome(read, run)


def _paths(value: Any, depth: int = 4) -> Iterator[tuple[Any, ...]]:
    """Yield where the parts of a value are, of lists the first."""
    parts = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    for key, part in list(parts)[:12]:
        yield (key,)
        if depth > 1:
            yield from ((key, *rest) for rest in _paths(part, depth - 1))


def _with(value: Any, path: tuple[Any, ...], part: Any) -> Any:
    """Return a value with another part in one place."""
    if not path:
        return part
    if isinstance(value, list):
        return [_with(one, path[1:], part) if at == path[0] else one for at, one in enumerate(value)]
    return {key: _with(one, path[1:], part) if key == path[0] else one for key, one in value.items()}


def _documents(run: Path, name: str) -> Iterator[bytes]:
    """Yield a run's file again and again, each time with one value of a wrong kind; sealed where it was."""
    path = run / name
    lines = path.read_bytes().splitlines() if name.endswith(".jsonl") else [path.read_bytes()]
    place = min(1, len(lines) - 1)
    whole = json.loads(lines[place])
    was_sealed = whole.pop("check", None) is not None
    for where in _paths(whole):
        for bad in BAD_VALUES:
            changed = _with(whole, where, bad)
            try:
                text = sealed(changed) if was_sealed else json.dumps(changed, ensure_ascii=False).encode()
            except UnicodeEncodeError:
                text = json.dumps(changed).encode()
            yield b"\n".join([*lines[:place], text.strip(), *lines[place + 1 :]])


@pytest.mark.parametrize("most", SAMPLES)
@pytest.mark.parametrize("name", [name for name in READERS if name != "spec.toml"])
def test_no_value_of_a_wrong_kind_is_taken_for_a_bug(name: str, most: int, run: Path, spoil: Spoil) -> None:
    if name == "audit.json":
        sha256 = json.loads((run / "model" / "last.json").read_text())["weights_sha256"]
        spoil(name, json.dumps({**AUDIT, "model_sha256": sha256}).encode())
    if name == "answers.json":
        spoil(name, json.dumps(ANSWERS).encode())
    documents, refused = list(_documents(run, name)), 0
    for data in random.Random(name).sample(documents, min(len(documents), most)):
        spoil(name, data + b"\n")
        refused += bool("".join(outcome(read, run) for read in READERS[name]))
    assert refused > 1, "else the readers did not look"


# -- the program itself -----------------------------------------------------------------------------------


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10**12)


def _folder(path: Path) -> None:
    path.mkdir()


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_pipe, _sparse, _folder, _endless])
@pytest.mark.parametrize(
    ("name", "words", "codes"),
    [
        ("spec.toml", ["run", "{}/spec.toml"], {2}),
        ("spec.toml", ["run", "--resume", "{}"], {2}),
        ("environment.json", ["run", "--resume", "{}"], {4}),
        ("metrics.jsonl", ["run", "--resume", "{}"], {4}),
        ("checkpoints/round-0003/manifest.json", ["run", "--resume", "{}", "--no-report", "--quiet"], {0}),
        (
            "checkpoints/round-0003/state.safetensors",
            ["run", "--resume", "{}", "--no-report", "--quiet"],
            {0},
        ),
        ("model/last.json", ["export", "{}", "--format", "safetensors"], {4}),
        ("model/last.safetensors", ["export", "{}", "--format", "safetensors"], {4}),
    ],
)
def test_what_is_no_file_or_has_no_end_is_refused_at_once(
    fedscal: Zygote,
    tiny_runs: dict[str, Path],
    copy_of: Copy,
    tmp_path: Path,
    make: Callable[[Path], None],
    name: str,
    words: list[str],
    codes: set[int],
) -> None:
    run = copy_of(tiny_runs["fedmoon"])
    (run / name).unlink()
    make(run / name)
    ended = fedscal(*[word.format(run) for word in words], cwd=tmp_path, timeout=60)
    assert ended.code in codes, ended.err
    assert ended.code == 0 or Path(name).name in ended.error


@pytest.mark.parametrize(
    "name", ["400 zeros", "5,000 digits", "deep key", "deep list", "too large", "long key"]
)
def test_a_hostile_recipe_ends_with_2_and_little_of_it_comes_back(
    fedscal: Zygote, tmp_path: Path, name: str
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_bytes(BAD_RECIPES[name])
    ended = fedscal("run", recipe, "--out", tmp_path / "run")
    assert ended.code == 2
    assert len(ended.error) < 2000, "a list of the keys is the longest"
    assert not (tmp_path / "run").exists()


LONG = "x" * 20_000


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["run", word]
            for word in (LONG, f"{LONG}=1", f"lr={LONG}", f"method={LONG}", f"seed={'9' * 20_000}")
        ),
        *(
            ["run", f"{key}={LONG}"]
            for key in ("benchmark", "source", "model", "adaptation", "classes", "device")
        ),
        ["run", f"benchmark={'a b ' * 5000}"],
        ["run", "--out", LONG],
        ["run", "--resume", LONG],
        ["run", "source_model=" + LONG],
        ["compare", *TINY, "--jobs", LONG],
        ["compare", *TINY, "--baseline", LONG],
        ["predict", LONG, LONG],
        ["report", LONG],
        ["data", "check", LONG],
        [LONG],
        ["run", f"--{LONG}"],
    ],
    ids=lambda words: " ".join(words)[:20],
)
def test_a_long_word_does_not_come_back(fedscal: Zygote, words: list[str]) -> None:
    ended = fedscal(*words)
    assert ended.code in (2, 3, 4, 7), ended.err
    assert len(ended.out + ended.err) < 2500
    assert "Traceback" not in ended.err


def test_an_escape_in_a_word_does_not_reach_the_terminal(fedscal: Zygote) -> None:
    ended = fedscal("run", "method=\x1b[31mred\nerror: done")
    assert ended.code == 2
    assert "\x1b" not in ended.error
    assert len(ended.err.splitlines()) == 1
