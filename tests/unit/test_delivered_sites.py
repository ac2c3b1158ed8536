"""What a run with statistics of the site delivers: shared weights, and each site's own statistics."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from PIL import Image

import fedscal
import toys
from fedscal.core import weights
from fedscal.core.errors import ModelRefused, UsageError
from fedscal.data.benchmark import Benchmark
from fedscal.data.labels import known_labels
from fedscal.deploy.classifier import Classifier
from fedscal.deploy.predict import as_model_sees
from fedscal.deploy.site import ENOUGH, doubt_images, sites_of, use_images, use_site
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.metrics import COMPARABLE
from fedscal.experiment.run import adapt
from fedscal.experiment.run_directory import RunDirectory
from fedscal.experiment.spec import RunSpec
from fedscal.models.statistics import SiteStatistics
from fedscal.models.store import read_card
from fedscal.runtime.evaluate import accuracy
from toys import tensor_of

KEYS = {"benchmark": "toy", "method": "fedsite", "workers": 1, "rounds": 2, "pretrain_epochs": 3}


@pytest.fixture(params=["trained", "frozen"])
def run(request: pytest.FixtureRequest, toy_benchmark: Benchmark, tmp_path: Path) -> Path:
    adapt(RunSpec.make(**KEYS, trunk=request.param), tmp_path / "run")
    return tmp_path / "run"


def check_sites_are_as_recorded(run: Path, rounds: Mapping[str, int], said: str) -> None:
    """Check that every site, opened as a user would, is as right as the record of its round says."""
    experiment = Experiment.build(RunSpec.make(**KEYS))
    records = RunDirectory(run).rounds()
    layout = experiment.clients_of_data()
    assert sorted(sites_of(Classifier.open(run))) == layout.clients
    for client, (domain, rows) in layout.rows.items():
        classifier = Classifier.open(run)
        assert use_site(classifier, client) == said.format(client)
        pixels = tensor_of(experiment.data.build(domain)[0])[rows]
        answers = classifier.probabilities(pixels).argmax(dim=1)
        truth = known_labels(experiment.data, domain)[rows]
        expected = records[rounds[client]].client(client).accuracy
        assert accuracy(answers, truth) == pytest.approx(expected)


def test_a_site_s_model_is_exported_with_the_site_s_statistics(run: Path, tmp_path: Path) -> None:
    site, pixels = "dark-0", tensor_of(Experiment.build(RunSpec.make(**KEYS)).data.build("dark")[0])
    classifier = Classifier.open(run)
    use_site(classifier, site)
    made = fedscal.export(run, tmp_path / "m.safetensors", to="safetensors", site=site)
    again = fedscal.load(made.path)
    torch.testing.assert_close(again.probabilities(pixels), classifier.probabilities(pixels))
    assert use_images(again, pixels) == "", "the statistics of other images do not take the site's place"
    assert f"Statistics: those of the site {site}" in made.card.read_text()
    fedscal.export(run, tmp_path / "m.safetensors", to="safetensors", site=site)  # the same once more
    with pytest.raises(UsageError, match=r"m\.safetensors is there already"):
        fedscal.export(run, tmp_path / "m.safetensors", to="safetensors")


WITH_STATISTICS = "with the statistics of site {}"
WITH_SOURCE = "with the source model, which its run keeps for site {}, and the site's statistics"


def test_the_delivered_model_with_a_site_s_statistics_is_the_one_that_was_judged(run: Path) -> None:
    last = len(RunDirectory(run).rounds()) - 1
    check_sites_are_as_recorded(run, defaultdict(lambda: last), WITH_STATISTICS)


def models_of(run: Path, *names: str) -> list[Mapping[str, torch.Tensor]]:
    return [weights.from_bytes((run / "model" / f"{n}.safetensors").read_bytes(), n) for n in names]


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_site_is_given_the_mean_of_both_models_that_it_judged(
    share: float, toy_benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedscal.models.steadiness.kept_share", lambda *given: share)
    monkeypatch.setattr("fedscal.experiment.delivery._AGREE", 0.0)
    run = adapt(RunSpec.make(**KEYS, lr=1), tmp_path / "run")
    check_sites_are_as_recorded(run.path, defaultdict(lambda: 2), WITH_STATISTICS)
    source, last, site = models_of(run.path, "source", "last", "sites/dark-0")
    key = "bottleneck.weight"
    assert not torch.equal(source[key], last[key])
    torch.testing.assert_close(site[key], share * source[key] + (1 - share) * last[key])
    assert run.rounds()[-1].client("dark-0").source_share == share


def test_without_a_share_a_site_has_statistics_only(toy_benchmark: Benchmark, tmp_path: Path) -> None:
    run = adapt(RunSpec.make(**KEYS, site_share=0), tmp_path / "run")
    assert "bottleneck.weight" not in models_of(run.path, "sites/dark-0")[0]


def test_a_folder_is_given_a_mean_of_both_models_as_a_site_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def quarter(*given: float) -> float:
        seen.extend(given)
        return 0.25

    monkeypatch.setattr("fedscal.models.steadiness.kept_share", quarter)
    pixels = tensor_of(Experiment.build(RunSpec.make(**KEYS)).data.build("dark")[0])
    classifier = Classifier.open(run)
    assert use_images(classifier, pixels).endswith(" and 25% of the source model")
    assert seen[-1] == 0.9
    assert min(seen) > 0
    (source,), key = models_of(run, "source"), "bottleneck.weight"
    mean = 0.25 * source[key] + 0.75 * classifier.weights[key]
    torch.testing.assert_close(classifier.module.network.state_dict()[key], mean)
    (run / "model" / "source.safetensors").unlink()
    assert "source model" not in use_images(classifier, pixels)
    assert torch.equal(classifier.module.network.state_dict()[key], classifier.weights[key])


def test_many_images_of_one_class_are_given_a_mean_of_both_models_too(run: Path) -> None:
    pixels, labels = toys.blobs(1200, seed=5, brightness=60)
    classifier = Classifier.open(run)
    answered = use_images(classifier, pixels[labels == 0])
    assert answered.startswith(f"with the statistics of these {int((labels == 0).sum())} images and ")
    assert answered.endswith("% of the source model")


def test_files_whose_strong_views_are_looked_at_are_decoded_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: Counter[Path] = Counter()

    def count(path: Path, classifier: Classifier) -> torch.Tensor:
        decoded[path] += 1
        return as_model_sees(path, classifier)

    monkeypatch.setattr("fedscal.deploy.site.as_model_sees", count)
    paths = [tmp_path / f"{number}.png" for number in range(ENOUGH)]
    for path, pixels in zip(paths, toys.blobs(ENOUGH, seed=5, brightness=60)[0], strict=True):
        Image.fromarray(pixels[0].numpy()).save(path)
    assert use_images(Classifier.open(run), paths).endswith("of the source model")
    assert decoded == dict.fromkeys(paths, 1)


def test_sites_whose_answers_changed_too_much_are_given_the_source_model(
    toy_benchmark: Benchmark, tmp_path: Path, sites_go_too_far: None
) -> None:
    directory = adapt(RunSpec.make(**KEYS, lr=3, site_share=0), tmp_path / "run")
    delivery = directory.summary().delivery
    assert delivery
    assert (delivery.round, list(delivery.unchanged)) == (
        2,
        sorted(sites_of(Classifier.open(directory.path))),
    )
    check_sites_are_as_recorded(directory.path, defaultdict(int), WITH_SOURCE)


def test_a_site_that_is_not_there_is_named(run: Path) -> None:
    with pytest.raises(UsageError, match="no statistics are kept for the site 'nowhere'"):
        use_site(Classifier.open(run), "nowhere")


def test_a_folder_of_enough_images_gives_the_model_its_own_statistics(run: Path, tmp_path: Path) -> None:
    paths = []
    for number in range(ENOUGH):
        path = tmp_path / f"{number}.png"
        Image.new("L", (6, 6), number * 8).save(path)
        paths.append(path)
    classifier = Classifier.open(run)
    before = {name: buffer.clone() for name, buffer in classifier.module.network.named_buffers()}
    assert "too few" in use_images(classifier, paths[:-1])
    assert all(torch.equal(b, before[n]) for n, b in classifier.module.network.named_buffers())
    assert use_images(classifier, paths).startswith(f"with the statistics of these {ENOUGH} images")
    assert any(not torch.equal(b, before[n]) for n, b in classifier.module.network.named_buffers())


def test_images_unlike_those_of_the_model_are_doubted_if_they_are_enough(run: Path, tmp_path: Path) -> None:
    paths = []
    for number in range(COMPARABLE):
        path = tmp_path / f"{number}.png"
        Image.new("L", (6, 6), 0).save(path)
        paths.append(path)
    classifier = Classifier.open(run)
    assert "these images are unlike those that the model was trained on" in doubt_images(classifier, paths)
    assert doubt_images(classifier, paths[:-1]) == ""
    images, module = torch.stack([as_model_sees(p, classifier) for p in paths]), classifier.module
    SiteStatistics().apply(module.network, images, module.network_sees)
    assert doubt_images(classifier, paths) == "", "they are what the model knows now"


def test_a_site_of_few_images_gets_the_source_s_statistics_and_not_those_of_the_site_before(
    run: Path,
) -> None:
    classifier = Classifier.open(run)
    before = {name: buffer.clone() for name, buffer in classifier.module.network.named_buffers()}
    use_site(classifier, next(iter(sites_of(classifier))))
    assert any(not torch.equal(b, before[n]) for n, b in classifier.module.network.named_buffers())
    assert "too few" in use_images(classifier, [])
    assert all(torch.equal(b, before[n]) for n, b in classifier.module.network.named_buffers())


def test_only_what_is_trained_is_in_the_file_of_a_frozen_trunk(
    toy_benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapt(RunSpec.make(**KEYS, trunk="frozen"), tmp_path / "run")
    classifier = Classifier.open(tmp_path / "run")
    assert classifier.card.trunk_sha256
    size = (tmp_path / "run" / "model" / "last.safetensors").stat().st_size
    whole = sum(p.numel() for p in classifier.module.parameters())
    trunk = sum(p.numel() for p in classifier.module.trunk.parameters())
    assert trunk
    assert size < 4 * (whole - trunk) + 4096
    monkeypatch.setattr("fedscal.deploy.classifier.digest", lambda state: "another")
    with pytest.raises(ModelRefused, match="other weights than the model's"):
        Classifier.open(tmp_path / "run")


def test_a_round_that_went_too_far_is_kept_aside_and_commands_take_the_chosen_one(
    toy_benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedscal.experiment.delivery._AGREE", 1.0)  # no answer may change
    directory = adapt(RunSpec.make(**KEYS, lr=3, site_share=0), tmp_path / "run")
    delivery = directory.summary().delivery
    assert delivery
    assert (delivery.round, delivery.verdict) == (0, "unsure")
    classifier = Classifier.open(directory.path)
    assert (classifier.path.stem, classifier.card.round) == ("selected", 0)
    assert (directory.path / "model" / "rejected.safetensors").exists()
    check_sites_are_as_recorded(directory.path, defaultdict(int), WITH_SOURCE)


@pytest.mark.parametrize("trunk", ["trained", "frozen"])
def test_sites_with_a_single_class_are_run_and_delivered_with_their_shares(
    trunk: str, toy_benchmark: Benchmark, tmp_path: Path
) -> None:
    spec = RunSpec.make(**{**KEYS, "pretrain_epochs": 30}, trunk=trunk, class_skew=0.001)
    experiment = Experiment.build(spec)
    layout = experiment.clients_of_data()
    known = {d: known_labels(experiment.data, d) for d in set(layout.domains.values())}
    classes = {
        client: len(set(known[domain][rows].tolist())) for client, (domain, rows) in layout.rows.items()
    }
    assert 1 in classes.values(), "the cut must make such a site"
    directory = adapt(spec, tmp_path / "run")
    first, last = directory.rounds()[0], directory.rounds()[-1]
    source = weights.from_bytes((directory.path / "model" / "source.safetensors").read_bytes(), "source")
    for client, count in classes.items():
        file = directory.path / "model" / "sites" / f"{client}.safetensors"
        bias = weights.from_bytes(file.read_bytes(), client)["head.bias"]
        if count == 1:
            assert not torch.equal(bias, source["head.bias"]), client
            assert last.client(client).accuracy >= first.client(client).accuracy - 10


def test_an_earlier_round_of_a_method_with_several_models_does_not_end_the_run(
    toy_benchmark: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedscal.experiment.delivery.delivered_round", lambda records: min(1, len(records) - 1)
    )
    keys = {**KEYS, "method": "loa", "statistics": "site", "select": "agreement"}
    directory = adapt(RunSpec.make(**keys), tmp_path / "run")
    delivery = directory.summary().delivery
    assert delivery
    assert delivery.round == 1
    cards = [read_card(str(path)) for path in (directory.path / "model" / "sites").glob("*.safetensors")]
    assert {card.round for card in cards} == {2}
