"""The names that ``import fedscal`` gives: they complete, they explain themselves, and they work."""

from __future__ import annotations

import json
import pydoc
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedscal
from fedscal.core import weights
from fedscal.core.errors import DataRefused, UsageError
from fedscal.core.table import Table
from fedscal.data.benchmark import Benchmark
from fedscal.deploy.predict import Answer
from fedscal.experiment.audits import Share, SiteAudit
from fedscal.experiment.progress import told
from fedscal.experiment.run_directory import RunDirectory
from fedscal.models.store import ModelCard, model_files
from toys import SIDE, blobs, tiny_network

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def model(toy_benchmark: Benchmark, tmp_path: Path) -> Path:
    card = ModelCard(
        model="tiny", shape=(1, SIDE, SIDE), classes=("a", SCRIPT, "c"), benchmark="toy", source=""
    )
    folder = tmp_path / "model"
    folder.mkdir()
    for name, data in model_files("last", weights.snapshot(tiny_network().state_dict()), card).items():
        (folder / name).write_bytes(data)
    return folder / "last.safetensors"


def test_dir_lists_exactly_the_public_names_and_each_is_there() -> None:
    assert dir(fedscal) == sorted(fedscal.__all__)
    assert {"adapt", "audit", "export", "load", "predict", "resume", "write_report"} <= set(dir(fedscal))
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(dir(fedscal))
    assert all(getattr(fedscal, name) is not None for name in dir(fedscal))


def test_help_has_a_tour() -> None:
    text = pydoc.plain(pydoc.render_doc(fedscal))
    assert "fedscal.predict(run" in text
    assert "Check a model on a few labelled images" in text


def test_a_tensor_is_answered_row_by_row(model: Path) -> None:
    pixels, _ = blobs(70)
    with pytest.warns(UserWarning, match="unlike those that the model was trained on"):
        answers = fedscal.predict(model, pixels, device="cpu")
    expected = fedscal.load(model, "cpu").probabilities(pixels).argmax(dim=1)
    assert answers.labels == [("a", SCRIPT, "c")[number] for number in expected]
    assert [answer.path for answer in answers] == list(range(70))


def test_pixels_that_the_model_cannot_take_are_refused(model: Path) -> None:
    pixels, _ = blobs(70)  # enough for statistics of their own
    for wrong in (pixels.float(), pixels[:, :, 1:]):
        with pytest.raises(DataRefused, match=r"takes uint8 images \(n, 1 x 6 x 6\)"):
            fedscal.predict(model, wrong, device="cpu")


def test_an_export_has_its_card_and_only_known_formats(model: Path, tmp_path: Path) -> None:
    made = fedscal.export(fedscal.load(model), tmp_path / "copy.safetensors", to="safetensors")
    assert made.path.read_bytes() == model.read_bytes()
    assert made.card.read_text().startswith("# Model card")
    assert json.loads(made.path.with_suffix(".json").read_text())["model"] == "tiny"
    with pytest.raises(UsageError, match="onnx or safetensors"):
        fedscal.export(model, to="pickle")


def test_a_classifier_shows_itself_without_its_weights(model: Path) -> None:
    classifier = fedscal.load(model, "cpu")
    assert "tiny" in repr(classifier)
    assert len(repr(classifier)) < 1000
    assert "&lt;script&gt;" in classifier._repr_html_()
    assert SCRIPT not in classifier._repr_html_()


def test_predictions_show_the_first_and_count_the_rest() -> None:
    shown = fedscal.Predictions([Answer(row, SCRIPT, 0.5) for row in range(25)], note="with a note")
    assert repr(shown).startswith("25 predictions")
    assert "and 5 more" in repr(shown)
    assert "with a note" in shown._repr_html_()
    assert SCRIPT not in shown._repr_html_()
    assert shown[3] == Answer(3, SCRIPT, 0.5)


def test_an_audit_shows_its_table_and_its_sentence() -> None:
    share = Share(3, 75.0, (30.0, 95.0))
    audit = fedscal.Audit("0", [SiteAudit(site=SCRIPT, images=4, adapted=share)], sentence="It is better.")
    assert "[30.0, 95.0]" in repr(audit)
    assert repr(audit).endswith("It is better.")
    assert "It is better." in audit._repr_html_()
    assert SCRIPT not in audit._repr_html_()
    assert repr(replace(audit, sites=[]))


def test_a_run_directory_without_a_run_says_so(tmp_path: Path) -> None:
    assert repr(RunDirectory(tmp_path / "none")) == f"{tmp_path / 'none'}: no run yet"


def test_a_run_shows_what_came_of_it_and_escapes_names(toy_benchmark: Benchmark, tmp_path: Path) -> None:
    spec = fedscal.RunSpec.make(
        benchmark="toy",
        source=toy_benchmark.domains[0],
        method="fedloa",
        model="tiny",
        rounds=1,
        local_epochs=1,
        pretrain_epochs=1,
        workers=1,
    )
    lines: list[str] = []
    run = fedscal.adapt(spec, tmp_path / "<b>run", progress=lines.append)
    assert any(line.startswith("round 1/1") for line in lines)
    assert "fedloa from" in repr(run)
    assert ", finished after round 1" in repr(run)
    assert {line.split()[0] for line in repr(run).splitlines()} >= {*toy_benchmark.domains[1:], "average"}
    assert "<b>run" not in run._repr_html_()
    assert "&lt;b&gt;run" in run._repr_html_()
    check_compared(run, fedscal.adapt(spec.replace(seed=1), tmp_path / "other"), tmp_path)


def check_compared(one: RunDirectory, other: RunDirectory, tmp_path: Path) -> None:
    """Check a comparison of two runs with other seeds, and of a third that is not finished."""
    (tmp_path / "<i>stopped").mkdir()
    (tmp_path / "<i>stopped" / "spec.toml").write_bytes((one.path / "spec.toml").read_bytes())
    compared = fedscal.compare_runs([one, other.path, str(one.path), tmp_path / "<i>stopped"])
    [table] = compared.tables
    assert [row[:2] for row in table.rows] == [["FedLoA", "0-1"]], "each run once"
    assert list(compared.left_out.values()) == ["unfinished, 0 rounds recorded"]
    assert "FedLoA" in repr(compared)
    assert "unfinished" in repr(compared)
    assert "<td>FedLoA</td>" in compared._repr_html_()
    assert "<i>" not in compared._repr_html_()
    with pytest.raises(UsageError, match="there is no run directory"):
        fedscal.compare_runs([tmp_path / "nothing"])


def test_a_table_as_text_is_aligned_and_keeps_the_cursor_still() -> None:
    table = Table("T", ("a", "b"), [["long\x1b[2J", "1"], ["s", "2"]], ("note",))
    assert table.text() == "T\na         b\nlong [2J  1\ns         2\nnote"


def test_probabilities_need_no_gradient(model: Path) -> None:
    assert not fedscal.load(model, "cpu").probabilities(torch.zeros(1, 1, SIDE, SIDE)).requires_grad


def test_progress_is_nobody_a_printer_or_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(False) == []
    told(True)[0].warn("mind")
    assert capsys.readouterr().out == "warning: mind\n"
