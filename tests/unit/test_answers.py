"""``answers.json``: what both models of a run answer to the clients' images, as the run judged them."""

from __future__ import annotations

import base64
import io
import json
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import fedscal
from fedscal.core.convert import dump
from fedscal.core.errors import DataRefused, ModelRefused, UsageError
from fedscal.core.files import write_json
from fedscal.data.benchmark import Benchmark
from fedscal.data.picture import picture, thumbnail
from fedscal.data.registry import BENCHMARKS
from fedscal.deploy.classifier import Classifier
from fedscal.deploy.site import use_site
from fedscal.experiment.answering import Asking, _domains, _labelled, ask_again
from fedscal.experiment.answers import ANSWERS, Answers, Example, Labelled
from fedscal.experiment.ask import Asked, Told
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.examples import pick_examples
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.load import load_run
from fedscal.experiment.plane import to_plane
from fedscal.experiment.records import RunSummary
from fedscal.experiment.run import adapt, resume
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec
from fedscal.server.rule import ServerState
from layouts import drawn_tree
from toys import CLASSES, SIDE, blobs, tensor_of

KEYS: dict[str, Any] = {"benchmark": "toy", "workers": 1, "rounds": 2, "pretrain_epochs": 3, "lr": 0.3}
SITES = {**KEYS, "method": "fedsite"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Place features by PCA: where nobody looks at their places, t-SNE's seconds are not needed."""
    monkeypatch.setattr("fedscal.experiment.plane._ENOUGH", 10**6)


class Heard(Callback):
    """Remembers stages and warnings."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.warnings: list[str] = []

    def stage(self, name: str, total: int) -> None:
        self.stages.append(name)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def run_of(out: Path, **keys: Any) -> RunDirectory:
    """Run a spec as ``fedscal run`` does: both models are asked at the end."""
    return adapt(RunSpec.make(**keys), out, Asking(out, Callback()))


def answers_of(run: RunDirectory) -> Answers:
    found = load_run(run.path).answers
    assert found
    return found


def right(labelled: Labelled | None) -> int:
    """Count the right answers of a confusion matrix."""
    assert labelled
    return sum(row[number] for number, row in enumerate(labelled.confusion))


def recorded(run: RunDirectory, rounds: Mapping[str, int]) -> dict[str, int]:
    """Count the right answers by domain that the run recorded, each client's in its round."""
    lines, counts = run.rounds(), Counter[str]()
    for client, domain in lines[0].domains.items():
        row = lines[rounds[client]].client(client)
        counts[domain] += round(row.accuracy * row.images / 100)
    return dict(counts)


def check_as_recorded(run: RunDirectory, rounds: Mapping[str, int]) -> Answers:
    """Check that the delivered models are as often right as the run's own evaluation says."""
    found = answers_of(run)
    assert {name: right(domain.after) for name, domain in found.domains.items()} == recorded(run, rounds)
    for domain in found.domains.values():
        assert domain.after
        assert domain.images == 30 == sum(domain.predicted_after) == sum(domain.predicted_before)
        columns = [sum(row[number] for row in domain.after.confusion) for number in range(CLASSES)]
        assert columns == list(domain.predicted_after)
    return found


@pytest.mark.parametrize("method", ["fedscal", "loa", "fedwca", "ladd", "source-only"])
def test_both_models_are_as_often_right_as_the_run_recorded(
    toy_benchmark: Benchmark, tmp_path: Path, method: str
) -> None:
    run = run_of(tmp_path / "run", **KEYS, method=method)
    last = run.summary().rounds
    found = check_as_recorded(run, defaultdict(lambda: last))
    before = {name: right(domain.before) for name, domain in found.domains.items()}
    assert before == recorded(run, defaultdict(int))
    assert (found.round, found.classes) == (last, ("top", "middle", "bottom"))
    changed = [domain.changed for domain in found.domains.values()]
    assert any(changed) == (method != "source-only")


@pytest.mark.parametrize("trunk", ["trained", "frozen"])
def test_sites_answer_with_their_own_statistics_and_the_source_model_as_it_came(
    toy_benchmark: Benchmark, tmp_path: Path, trunk: str
) -> None:
    run = run_of(tmp_path / "run", **SITES, trunk=trunk)
    delivery = run.summary().delivery
    assert delivery
    found = check_as_recorded(run, {c: delivery.round_at(c) for c in run.rounds()[0].domains})
    assert predicted(run) == {name: list(domain.predicted_after) for name, domain in found.domains.items()}
    source = Classifier.open(run.path / "model" / "source.safetensors")
    assert predicted(run, source) == {n: list(d.predicted_before) for n, d in found.domains.items()}


def predicted(run: RunDirectory, source: Classifier | None = None) -> dict[str, list[int]]:
    """Count the answers of ``fedscal predict --site``, or of a model as it came, by domain."""
    experiment = Experiment.build(run.spec())
    counts: dict[str, Tensor] = defaultdict(lambda: torch.zeros(CLASSES, dtype=torch.int64))
    for client, (domain, rows) in experiment.clients_of_data().rows.items():
        classifier = source or Classifier.open(run.path)
        if not source:
            use_site(classifier, client)
        pixels = tensor_of(experiment.data.build(domain)[0])[rows]
        told = classifier.probabilities(pixels).argmax(dim=1)
        counts[domain] += torch.bincount(told, minlength=CLASSES)
    return {domain: count.tolist() for domain, count in counts.items()}


def test_a_site_that_keeps_the_source_model_answers_by_it(
    toy_benchmark: Benchmark, tmp_path: Path, sites_go_too_far: None
) -> None:
    run = run_of(tmp_path / "run", **{**SITES, "lr": 3}, site_share=0)
    assert recorded(run, defaultdict(int)) != recorded(run, defaultdict(lambda: 2)), "else nothing is shown"
    assert check_as_recorded(run, defaultdict(int)).round == 2


def test_an_earlier_round_that_is_delivered_answers(
    toy_benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = "fedscal.experiment.delivery.delivered_round"
    monkeypatch.setattr(chosen, lambda records: min(1, len(records) - 1))
    run = run_of(tmp_path / "run", **SITES, site_share=0)
    assert recorded(run, defaultdict(lambda: 1)) != recorded(run, defaultdict(lambda: 2)), "nothing is shown"
    assert check_as_recorded(run, defaultdict(lambda: 1)).round == 1


def test_asking_moves_no_bit_of_a_run_and_asking_again_gives_the_same_bytes(
    toy_benchmark: Benchmark, tmp_path: Path
) -> None:
    plain = adapt(RunSpec.make(**SITES), tmp_path / "plain")
    asked = run_of(tmp_path / "asked", **SITES)
    assert plain.summary().weights_sha256 == asked.summary().weights_sha256
    assert not (plain.path / ANSWERS).exists()
    ask_again(plain.path)
    assert (plain.path / ANSWERS).read_bytes() == (asked.path / ANSWERS).read_bytes()
    ask_again(plain, images=True)
    first = (plain.path / ANSWERS).read_bytes()
    ask_again(plain, images=True)
    assert (plain.path / ANSWERS).read_bytes() == first != (asked.path / ANSWERS).read_bytes()


def test_pictures_are_there_only_if_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    photos = drawn_tree(tmp_path / "photos", ["bright", "dull", "dark"], images=6)
    keys = {"benchmark": str(photos), "source": "bright", "model": "convnet", "trunk": "trained"}
    short = {"rounds": 1, "local_epochs": 1, "pretrain_epochs": 1, "image_size": 32, "method": "fedloa"}
    run = run_of(tmp_path / "run", **keys, **short, clients_per_domain=2, workers=1)
    assert answers_of(run).examples == ()
    assert "png" not in (run.path / ANSWERS).read_text()
    examples = ask_again(run, images=True).examples
    assert answers_of(run).examples == tuple(examples)
    kinds = Counter((example.kind, example.domain) for example in examples)
    assert kinds["doubtful", "dull"] == kinds["doubtful", "dark"] == 6
    for example in examples:
        shown = photos / example.domain / example.name
        assert shown.parent.name == example.label, "its name is its file from the site's folder on"
        assert example.kind != "changed" or example.before != example.after
        assert example.kind != "mistake" or example.label != example.after
        assert _picture(example).size == (37, 37), "as it was decoded"
    assert load_run(run.path).notes == []
    resume(run.path, Asking(run.path, Callback()))
    assert answers_of(run).examples == tuple(examples), "what was asked for stays, if the model does"


def _picture(example: Example) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(example.png)))


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "L"), (3, "RGB")])
def test_a_picture_is_small_and_has_colours_if_the_image_has(channels: int, mode: str) -> None:
    pixels = torch.randint(256, (channels, 200, 100), dtype=torch.uint8)
    made = Image.open(io.BytesIO(base64.b64decode(thumbnail(pixels, 96))))
    assert (made.format, made.mode, made.size) == ("PNG", mode, (48, 96))
    assert picture(pixels).size == (100, 200)
    if channels != 2:
        assert picture(pixels).getpixel((7, 9)) == (
            int(pixels[0, 9, 7]) if channels == 1 else tuple(pixels[:, 9, 7].tolist())
        )


def told(answers: Sequence[int], confidence: Sequence[float], margin: Sequence[float] = ()) -> Told:
    sure = torch.tensor(confidence)
    return Told(
        torch.tensor(answers), sure, torch.tensor(margin) if margin else sure, torch.zeros(len(sure), 2)
    )


def domain(before: Told, after: Told, truth: Sequence[int] | None = None) -> Asked:
    count = len(after.answers)
    return Asked(
        clients=["a"] * count,
        rows=torch.arange(count),
        marked=torch.ones(count, dtype=torch.bool),
        before=before,
        after=after,
        labels=None if truth is None else torch.tensor(truth),
    )


def test_examples_are_the_surest_or_most_doubtful_of_every_domain_in_turn(
    toy_benchmark: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedscal.experiment.examples._EACH", 3)
    sure, doubt = [0.9, 0.5, 0.8, 0.6], [0.8, 0.1, 0.6, 0.2]
    asked = {
        "dim": domain(told([0, 0, 0, 0], sure), told([1, 1, 1, 0], sure, doubt), [1, 1, 0, 1]),
        "dark": domain(told([0, 0, 0, 0], sure), told([1, 0, 0, 0], [0.4] * 4, [0.3] * 4)),
    }
    found = [
        (e.kind, e.domain, e.name, e.before, e.after, e.label) for e in pick_examples(asked, toy_benchmark)
    ]
    assert found == [
        ("changed", "dim", "0", "top", "middle", "middle"),
        ("changed", "dark", "0", "top", "middle", None),
        ("changed", "dim", "2", "top", "middle", "top"),
        ("mistake", "dim", "2", "top", "middle", "top"),
        ("mistake", "dim", "3", "top", "top", "middle"),
        ("doubtful", "dim", "1", "top", "middle", "middle"),
        ("doubtful", "dark", "0", "top", "middle", None),
        ("doubtful", "dim", "3", "top", "top", "middle"),
    ]


def test_calibration_is_by_bins_and_its_error_by_images() -> None:
    found = _labelled(told([0, 1, 1, 0], [0.95, 1.0, 0.55, 0.55]), torch.tensor([0, 1, 1, 1]), 2)
    assert found.confusion == [[1, 0], [1, 2]]
    assert list(found.bins.images) == [0, 0, 0, 0, 0, 2, 0, 0, 0, 2]
    assert (found.bins.confidence[5], found.bins.right[5]) == (0.55, 0.5)
    assert (found.bins.confidence[9], found.bins.right[9], found.bins.right[0]) == (0.975, 1.0, 0.0)
    assert found.calibration_error == pytest.approx((0.05 * 2 + 0.025 * 2) / 4, abs=1e-4)


@pytest.mark.parametrize(
    ("classes", "domains", "there"), [(100, 20, True), (345, 5, False), (65, 200, False)]
)
def test_what_labels_say_is_left_out_where_it_would_make_the_file_large(
    classes: int, domains: int, there: bool
) -> None:
    one = domain(told([0, classes - 1], [0.5, 0.9]), told([1, 0], [0.5, 0.9]), [0, 1])
    found = _domains({f"site-{number}": one for number in range(domains)}, classes)
    assert {bool(part.before) for part in found.values()} == {there}
    assert {bool(part.after) for part in found.values()} == {there}
    assert len(json.dumps([dump(part) for part in found.values()], separators=(",", ":"))) < 1_000_000


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 8), nn.ReLU(), nn.Linear(8, CLASSES))


def on_tensors(out: Path, sites: Mapping[str, Any], *callbacks: Callback) -> RunDirectory:
    keys: dict[str, Any] = {"rounds": 1, "local_epochs": 1, "method": "fedloa"}
    return fedscal.adapt(module(), sites, *callbacks, out=out, classes=("a", "b", "c"), **keys)


def test_without_labels_nothing_is_said_about_being_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    sites = {"x": blobs(12)[0], "y": blobs(10, 1)}
    run = on_tensors(tmp_path / "run", sites, Asking(tmp_path / "run", Callback()))
    found = answers_of(run)
    assert {name: (part.images, part.before, part.after) for name, part in found.domains.items()}["x"] == (
        12,
        None,
        None,
    )
    assert found.domains["y"].after
    assert Counter((point.domain, point.label is None) for point in found.points) == {
        ("x", True): 12,
        ("y", False): 10,
    }
    kinds = {(example.kind, example.domain) for example in ask_again(run, images=True).examples}
    assert ("doubtful", "x") in kinds
    assert ("mistake", "x") not in kinds


class Loses(Callback):
    """Removes a folder of the cache when the rounds are done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def end(self, summary: RunSummary, state: ServerState) -> None:
        shutil.rmtree(self._folder)


def test_images_that_are_gone_are_a_warning_and_the_run_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCAL_CACHE", str(tmp_path / "cache"))
    heard = Heard()
    last = (Loses(tmp_path / "cache" / "tensors"), heard, Asking(tmp_path / "run", heard))
    run = on_tensors(tmp_path / "run", {"x": blobs(12)[0]}, *last)
    assert run.finished
    assert not (run.path / ANSWERS).exists()
    assert [text for text in heard.warnings if "what the models answer is not on the page" in text]
    assert "Traceback" in (run.path / "events.log").read_text()
    assert heard.stages[-1] == "asking the source model and the delivered one"
    with pytest.raises((DataRefused, UsageError)):
        ask_again(run)


def test_other_weights_make_answers_out_of_date_and_they_are_made_anew(
    toy_benchmark: Benchmark, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", **KEYS, method="fedloa")
    first = (run.path / ANSWERS).read_bytes()
    write_json(run.path / ANSWERS, dump(replace(answers_of(run), model_sha256="other")))
    stale = load_run(run.path)
    assert stale.answers is None
    assert stale.notes == [
        "answers.json is not of this run's model and was left out; fedscal report --no-images asks anew."
    ]
    resume(run.path, Asking(run.path, Callback()))
    assert (run.path / ANSWERS).read_bytes() == first
    (run.path / "summary.json").unlink()
    assert load_run(run.path).answers is None, "a run that goes on will have another model"


def test_only_a_finished_run_with_its_state_and_its_own_data_can_be_asked(
    toy_benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = adapt(RunSpec.make(**KEYS, method="fedloa"), tmp_path / "run")
    shutil.copytree(run.path, tmp_path / "unfinished")
    (tmp_path / "unfinished" / "summary.json").unlink()
    with pytest.raises(UsageError, match="no finished run"):
        ask_again(tmp_path / "unfinished")
    shutil.copytree(run.path, tmp_path / "stateless")
    shutil.rmtree(tmp_path / "stateless" / "checkpoints")
    with pytest.raises(ModelRefused, match="does not hold the run's last round, 2"):
        ask_again(tmp_path / "stateless")
    other = replace(toy_benchmark, build=lambda domain: blobs(30, seed=7), version=2)
    monkeypatch.setitem(BENCHMARKS, "toy", other)
    with pytest.raises(DataRefused, match="are not those that"):
        ask_again(run)


def test_images_at_sites_of_other_machines_stay_there(toy_benchmark: Benchmark, tmp_path: Path) -> None:
    run = adapt(RunSpec.make(**KEYS, method="fedloa"), tmp_path / "run")
    keys = {"method": "fedloa", "clients": "flower:a+b", "source_model": str(run.path / "model")}
    (run.path / "spec.toml").write_text(RunSpec.make(**keys).to_toml())
    with pytest.raises(DataRefused, match="at the site, and stay there"):
        ask_again(run)


def test_many_features_are_placed_by_tsne_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscal.experiment.plane._ENOUGH", 90)
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(120, 5, generator=generator) + 20 * (torch.arange(120) % 2).unsqueeze(1)
    placed, how = to_plane(features)
    assert how == "t-SNE"
    assert placed.shape == (120, 2)
    even, odd = placed[::2], placed[1::2]
    assert torch.cdist(even, odd).min() > torch.cdist(even, even.mean(dim=0, keepdim=True)).median()
    assert torch.equal(to_plane(features)[0], placed)
    assert to_plane(features[:90])[1] == "PCA"
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "fedscal.experiment.tsne")
    monkeypatch.delitem(sys.modules, "sklearn.manifold")
    assert to_plane(features)[1] == "PCA"


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (torch.tensor([[0.0, 3.0, 0.0], [0.0, -3.0, 0.0], [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]), [3.0, 1.0]),
        (torch.tensor([[1.0], [3.0]]), [1.0, 0.0]),
        (torch.ones(200, 4), [0.0, 0.0]),
        (torch.ones(1, 4), [0.0, 0.0]),
    ],
    ids=["two axes", "one axis", "no difference", "one image"],
)
def test_principal_components_are_the_widest_axes(
    monkeypatch: pytest.MonkeyPatch, features: Tensor, expected: list[float]
) -> None:
    monkeypatch.setattr("fedscal.experiment.plane._ENOUGH", 90)
    placed, how = to_plane(features)
    assert how == "PCA"
    assert placed.abs().amax(dim=0).tolist() == pytest.approx(expected)
