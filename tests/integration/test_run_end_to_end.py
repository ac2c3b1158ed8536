"""The main job and the commands around it, as a user sees them: files, tables, JSON, a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from harness import (
    DIGITS,
    PROGRAM,
    TINY,
    WITH_TINY,
    Copy,
    Ended,
    Words,
    Zygote,
    environment,
    once,
    program,
    rows,
    summary,
)
from safetensors import safe_open

DOMAINS = {"optdigits", "font"}


@pytest.fixture(scope="session")
def run_and_output(cache: Path, shared: Path) -> tuple[Path, Ended]:
    """One run by the installed program, with the report and all it prints; not to be changed."""
    run, said = shared / "end to end ünïcode" / "run", shared / "end-to-end.json"

    def make() -> None:
        run.parent.mkdir(exist_ok=True)
        ended = program(cache, "run", *DIGITS, "--out", run)
        assert ended.code == 0, ended.err
        said.write_text(json.dumps(asdict(ended)))

    once(said, make)
    return run, Ended(**json.loads(said.read_text()))


def test_a_run_leaves_every_promised_file(run_and_output: tuple[Path, Ended]) -> None:
    run, _ = run_and_output
    names = {path.name for path in run.iterdir()}
    assert names >= {"spec.toml", "metrics.jsonl", "summary.json", "checkpoints", "model", "report.html"}
    assert "answers.json" in names
    assert [row["round"] for row in rows(run)] == [0, 1, 2]
    assert sorted(p.name for p in (run / "checkpoints").glob("round-*")) == ["round-0001", "round-0002"]


def test_what_both_models_answer_is_as_often_right_as_the_run_recorded(
    run_and_output: tuple[Path, Ended],
) -> None:
    run, ended = run_and_output
    found = json.loads((run / "answers.json").read_text())
    assert (found["model_sha256"], found["round"]) == (summary(run)["weights_sha256"], 2)
    assert (found["projection"], len(found["points"])) == ("t-SNE", 600)
    assert "examples" not in found, "pictures are kept only if they are asked for"
    first, *_, last = rows(run)
    for domain, told in found["domains"].items():
        for model, line in (("before", first), ("after", last)):
            matrix = told[model]["confusion"]
            mine = [row for row in line["clients"].values() if row["domain"] == domain]
            right = sum(round(row["accuracy"] * row["images"] / 100) for row in mine)
            assert sum(matrix[number][number] for number in range(10)) == right
            assert sum(map(sum, matrix)) == told["images"] == sum(row["images"] for row in mine)
    assert "asking the source model and the delivered one" in ended.out


def test_the_summary_has_every_promised_key(run_and_output: tuple[Path, Ended]) -> None:
    found = summary(run_and_output[0])
    names = ("benchmark", "source", "method", "adaptation", "seed", "rounds")
    assert tuple(found[name] for name in names) == ("digits", "mnist", "fedscal", "shot", 0, 2)
    assert set(found["accuracy"]) == {"source_only", "last", "selected", "best"}
    for values in found["accuracy"].values():
        assert set(values) == DOMAINS | {"average"}
        assert all(0 <= value <= 100 for value in values.values())
        assert values["average"] == pytest.approx(sum(values[d] for d in DOMAINS) / 2)
    assert 0 <= found["pseudo_label_accuracy"] <= 100
    assert set(found["seconds"]) == {"pretrain", "adapt", "evaluate"}
    assert all(seconds > 0 for seconds in found["seconds"].values())
    assert re.fullmatch("[0-9a-f]{64}", found["weights_sha256"])
    server = rows(run_and_output[0])
    assert found["accuracy"]["last"] == server[-1]["accuracy"]["server"]
    assert found["accuracy"]["source_only"] == server[0]["accuracy"]["server"]


@pytest.mark.parametrize("name", ["last", "selected", "source"])
def test_a_model_has_weights_and_a_card_with_ordered_classes(
    run_and_output: tuple[Path, Ended], name: str
) -> None:
    folder = run_and_output[0] / "model"
    card = json.loads((folder / f"{name}.json").read_text())
    assert card["classes"] == list("0123456789")
    assert card["shape"] == [1, 32, 32]
    with safe_open(folder / f"{name}.safetensors", "pt") as file:
        assert file.get_tensor("head.weight").shape[0] == 10
    if name == "last":
        assert card["weights_sha256"] == summary(run_and_output[0])["weights_sha256"]


def test_the_report_asks_the_network_for_nothing(run_and_output: tuple[Path, Ended]) -> None:
    page = (run_and_output[0] / "report.html").read_text()
    assert "<html" in page
    fetched = r"""(?:src|href|action|data)\s*=\s*["']?\s*(?:https?:)?//|url\(\s*["']?(?:https?:)?//|@import"""
    assert not re.search(fetched, page, re.IGNORECASE)


def test_not_in_a_terminal_the_program_prints_plain_lines_and_a_table(
    run_and_output: tuple[Path, Ended],
) -> None:
    run, ended = run_and_output
    assert ended.err == ""
    assert "\x1b" not in ended.out
    assert "\r" not in ended.out
    assert [line for line in ended.out.splitlines() if re.match(r"round [0-2]/2 +average [0-9.]+ %", line)]
    assert re.search(r"optdigits.*[0-9]+\.[0-9]", ended.out)
    assert f"run: {run}" in ended.out


def test_no_secret_of_the_environment_is_written_down(tmp_path: Path, fedscal: Zygote, cache: Path) -> None:
    secret = "hunter2-in-no-file"
    ended = fedscal("run", *TINY, "rounds=1", "--out", tmp_path / "run", env={"API_TOKEN": secret})
    assert ended.code == 0, ended.err
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]


def test_json_is_alone_on_stdout(fedscal: Zygote, tmp_path: Path) -> None:
    ended = fedscal("run", *TINY, "--json", "--no-report", "--out", tmp_path / "run")
    assert ended.code == 0, ended.err
    printed = json.loads(ended.out)
    assert printed.pop("directory") == str(tmp_path / "run")
    assert printed == summary(tmp_path / "run")
    assert ended.err == ""


def test_quiet_prints_nothing(fedscal: Zygote, tmp_path: Path) -> None:
    ended = fedscal("run", *TINY, "--quiet", "--out", tmp_path / "run")
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert (tmp_path / "run" / "report.html").exists()


def test_without_out_a_run_makes_its_own_directory_below_runs(fedscal: Zygote, tmp_path: Path) -> None:
    ended = fedscal("run", *TINY, "rounds=1", "--json", "--no-report", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert [path.parent.name for path in tmp_path.rglob("summary.json")] == [
        Path(json.loads(ended.out)["directory"]).name
    ]
    assert not list(tmp_path.rglob("report.html"))


@pytest.mark.long
def test_a_terminal_shows_a_progress_bar_to_the_end(tmp_path: Path, cache: Path) -> None:
    """The bar is another code path than the lines: a crash in it would cost every user at a terminal."""
    main, side = pty.openpty()
    env = environment(cache, TERM="xterm-256color")
    command = [*WITH_TINY, "run", *TINY, "rounds=1", "--no-report", "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=env) as process:
        os.close(side)
        text = _read_all(main)
    os.close(main)
    assert process.returncode == 0, text
    assert "━" in text
    assert "\x1b[" in text
    assert "1/1" in text
    assert "a bug:" not in text
    assert (tmp_path / "run" / "summary.json").exists()


def _read_all(handle: int) -> str:
    data, end = b"", time.monotonic() + 120
    while time.monotonic() < end:
        if select.select([handle], [], [], 1)[0]:
            try:
                part = os.read(handle, 65536)
            except OSError:  # the other side is closed
                break
            data += part
    return data.decode(errors="replace")


def test_report_rewrites_the_page_of_a_run(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
    run = copy_of(tiny_runs["fedscal"])
    page = run / "report.html"
    page.write_text("an old one")
    ended = fedscal("report", run)
    assert ended.code == 0, ended.err
    assert ended.out.strip() == str(page)
    assert "<svg" in page.read_text()


def test_report_asks_anew_if_it_is_told_to(
    fedscal: Zygote, tiny_runs: dict[str, Path], copy_of: Copy
) -> None:
    run = copy_of(tiny_runs["fedscal"])
    kept = run / "answers.json"
    assert not kept.exists(), "a run without a report does not pay for it"
    for option, pictures in (("--images", 36), ("--no-images", 0)):
        ended = fedscal("report", run, option)
        assert ended.code == 0, ended.err
        assert ended.out.splitlines()[-1] == str(run / "report.html")
        found = json.loads(kept.read_text())
        assert found["domains"].keys() == {"b", "c"}
        kinds = [example["kind"] for example in found.get("examples", [])]
        assert kinds.count("doubtful") == min(pictures, 12)
    refused = fedscal("report", *tiny_runs.values(), "--images")
    assert refused.code == 2
    assert "one directory" in refused.error


def test_report_of_several_runs_is_one_page(
    fedscal: Zygote, tiny_runs: dict[str, Path], tmp_path: Path
) -> None:
    ended = fedscal("report", *tiny_runs.values(), "--out", tmp_path / "both.html")
    assert ended.code == 0, ended.err
    page = (tmp_path / "both.html").read_text()
    for method in tiny_runs:
        assert method in page.lower()


def test_report_of_a_directory_without_a_run_is_refused(fedscal: Zygote, tmp_path: Path) -> None:
    ended = fedscal("report", tmp_path)
    assert ended.code == 2
    assert str(tmp_path) in ended.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["methods"], ["fedscal", "fedmoon", "source-only", "shot"]),
        (["keys"], ["participation", "lambda_server", "tau_init"]),
        (["data", "list"], ["digits", "optdigits"]),
    ],
)
def test_a_list_names_everything_in_text_and_in_json(
    fedscal: Zygote, cache: Path, command: list[str], words: list[str]
) -> None:
    text, as_json = fedscal(*command), fedscal(*command, "--json")
    assert (text.code, as_json.code) == (0, 0)
    assert json.loads(as_json.out)
    for word in words:
        assert word in text.out
        assert word in as_json.out


def test_doctor_finds_this_machine_fit(fedscal: Zygote, cache: Path) -> None:
    ended = fedscal("doctor", "--json")
    findings = {row["check"]: row for row in json.loads(ended.out)}
    assert findings["training step"]["ok"]
    assert ended.code == (0 if all(row["ok"] for row in findings.values()) else 1)
    assert "training step" in fedscal("doctor").out


def test_doctor_sees_a_cache_that_cannot_be_written(fedscal: Zygote, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = fedscal("doctor", "--json", cache=tmp_path / "file" / "cache")
    findings = {row["check"]: row for row in json.loads(ended.out)}
    assert ended.code == 1
    assert not findings["cache"]["ok"]
    assert str(tmp_path) in findings["cache"]["found"]


def test_data_get_builds_once_and_check_finds_it_whole(fedscal: Zygote, tmp_path: Path) -> None:
    refused = fedscal("data", "check", "tiny", cache=tmp_path)
    assert refused.code == 3
    assert "data get" in refused.error
    assert fedscal("data", "get", "tiny", cache=tmp_path).code == 0
    (manifest,) = (tmp_path / "data").glob("tiny-v1-*/manifest.json")
    before = manifest.stat().st_mtime_ns
    again = fedscal("data", "get", "tiny", cache=tmp_path)
    assert again.code == 0
    assert "b 48" in again.out
    assert manifest.stat().st_mtime_ns == before
    assert fedscal("data", "check", "tiny", cache=tmp_path).code == 0


def test_the_source_model_is_trained_once(fedscal: Zygote, tmp_path: Path) -> None:
    first, second = (json.loads(fedscal("pretrain", *TINY, "--json", cache=tmp_path).out) for _ in range(2))
    assert (first["cached"], second["cached"]) == (False, True)
    assert first["path"] == second["path"]
    assert first["accuracy"] == second["accuracy"]


def test_the_source_model_of_another_seed_is_another(fedscal: Zygote, cache: Path) -> None:
    paths = {json.loads(fedscal("pretrain", *TINY, f"seed={n}", "--json").out)["path"] for n in (0, 1)}
    assert len(paths) == 2


@pytest.mark.parametrize("method", ["source-only", "loa"])
def test_methods_without_a_shared_model_run_and_resume(fedscal: Zygote, tmp_path: Path, method: str) -> None:
    run = tmp_path / "run"
    assert fedscal("run", *TINY, f"method={method}", "--quiet", "--no-report", "--out", run).code == 0
    before = summary(run)["weights_sha256"]
    assert fedscal("run", "--resume", run, "--quiet").code == 0
    assert summary(run)["weights_sha256"] == before


def test_a_recipe_of_the_package_and_the_environment_come_before_the_command_line(
    fedscal: Zygote, tmp_path: Path
) -> None:
    recipe = tmp_path / "my.toml"
    recipe.write_text('benchmark = "tiny"\nrounds = 3\nseed = 1\nmethod = "fedloa"\n')
    env = {"FEDSCAL_ROUNDS": "2", "FEDSCAL_SEED": "2"}
    run = tmp_path / "run"
    ended = fedscal("run", recipe, "seed=3", "--quiet", "--no-report", "--out", run, env=env)
    assert ended.code == 0, ended.err
    found = summary(run)
    assert (found["method"], found["rounds"], found["seed"]) == ("fedloa", 2, 3)


@pytest.mark.parametrize(("method", "adaptation"), [("fedscal", "bmd"), ("fedprox", "ucon")])
def test_the_authors_preset_runs_with_other_methods_and_adaptations(
    fedscal: Zygote, tmp_path: Path, method: str, adaptation: str
) -> None:
    chosen = (f"method={method}", f"adaptation={adaptation}", "benchmark=tiny", "rounds=1", "local_epochs=1")
    run = tmp_path / "run"
    ended = fedscal("run", "authors-code", *chosen, "--quiet", "--no-report", "--out", run)
    assert ended.code == 0, ended.err
    assert (summary(run)["method"], summary(run)["adaptation"]) == (method, adaptation)
    assert [row["round"] for row in rows(run)] == [0, 1]


def test_a_reader_that_goes_away_is_no_error(cache: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {PROGRAM} keys | head -1"],
        capture_output=True,
        text=True,
        env=environment(cache),
        check=False,
    )
    assert done.stderr == ""


def test_a_terminal_without_unicode_still_shows_the_result(cache: Path, tmp_path: Path) -> None:
    """PYTHONIOENCODING is read at start-up, so here it is the real program."""
    words: Words = ["run", *TINY, "rounds=1", "--no-report", "--out", tmp_path / "rün"]
    ended = program(cache, *words, command=WITH_TINY, env={"PYTHONIOENCODING": "ascii"})
    assert ended.code == 0, ended.err
    assert "average" in ended.out
