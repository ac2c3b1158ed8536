"""Class shares of a site: what is estimated, how far it is trusted, and what follows from it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedscal.client.term import Objective
from fedscal.client.terms.ucon import Ucon, repulsion
from fedscal.client.training import ClientData, Training, local_update
from fedscal.core.rng import Streams
from fedscal.core.types import Package
from fedscal.core.weights import distance, snapshot
from fedscal.models.network import Network
from fedscal.models.shares import ClassShares, estimate_shares
from fedscal.models.statistics import SiteStatistics, load_at_site
from toys import NoiseViews, blobs, tiny_network

CLASSES = 10


def answers(counts: list[int], right: float = 0.8, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return logits of a model that is right for a share of the images, and the images' classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    wrong = torch.randint(len(counts), labels.shape, generator=generator)
    said = torch.where(torch.rand(labels.shape, generator=generator) < right, labels, wrong)
    logits = 0.5 * torch.randn(len(labels), len(counts), generator=generator)
    logits[torch.arange(len(labels)), labels] += 1.0  # a mistake still knows something of the right class
    logits[torch.arange(len(labels)), said] += 2.0
    return logits, labels


def test_shares_of_unlike_classes_are_found() -> None:
    logits, labels = answers([200, 100, 50, 20, 10, 5, 5, 5, 3, 2])
    found = estimate_shares(logits)
    true = torch.bincount(labels, minlength=CLASSES).double() / len(labels)
    counted = torch.bincount(logits.argmax(1), minlength=CLASSES).double() / len(labels)
    assert found.trust == 1
    assert float(found.shares.sum()) == pytest.approx(1)
    assert (found.shares - true).abs().sum() < (counted - true).abs().sum()


def test_equal_classes_are_left_alone() -> None:
    found = estimate_shares(answers([40] * CLASSES)[0])
    assert found.trust == 0
    assert found.expected.tolist() == pytest.approx([1 / CLASSES] * CLASSES)
    assert not found.shift.any()


def test_few_images_are_unlike_by_chance_alone() -> None:
    """Thirty images of ten classes drawn alike miss some and repeat others; that is no skew."""
    generator = torch.Generator().manual_seed(3)
    counts = torch.bincount(torch.randint(CLASSES, (30,), generator=generator), minlength=CLASSES)
    assert estimate_shares(answers(counts.tolist())[0]).trust < 0.2


@pytest.mark.parametrize("scale", [0.8, 1.0, 30.0])
def test_how_sure_a_model_is_does_not_matter(scale: float) -> None:
    logits, _ = answers([120, 60, 30, 15, 8, 4, 2, 2, 1, 1])
    found, plain = estimate_shares(scale * logits), estimate_shares(logits)
    assert found.temperature == pytest.approx(scale * plain.temperature, rel=1e-6)
    torch.testing.assert_close(found.shares, plain.shares, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found.shift, scale * plain.shift, atol=1e-4, rtol=1e-4)


def test_a_model_that_is_sure_of_nothing_is_not_believed() -> None:
    logits, _ = answers([120, 60, 30, 15, 8, 4, 2, 2, 1, 1])
    assert estimate_shares(logits).trust == 1
    assert estimate_shares(0.1 * logits).trust == 0


def test_the_shift_makes_more_answers_right() -> None:
    logits, labels = answers([200, 100, 50, 20, 10, 5, 5, 5, 3, 2], right=0.5)
    shifted = logits + estimate_shares(logits).shift
    before, after = ((x.argmax(1) == labels).double().mean() for x in (logits, shifted))
    assert after > before + 0.05


def test_a_site_of_a_single_class_and_one_that_lacks_half_of_them() -> None:
    single, half = (
        estimate_shares(answers([60] + [0] * 9)[0]),
        estimate_shares(answers([40] * 5 + [0] * 5)[0]),
    )
    assert single.trust == 1
    assert single.shares.argmax() == 0
    assert half.trust > 0
    assert half.shares[:5].min() > 2 * half.shares[5:].max()
    assert torch.isfinite(single.shift).all()


def test_balanced_rows_show_rare_classes_as_often_as_they_may() -> None:
    logits, labels = answers([300, 100, 20, 20, 20, 20, 20, 20, 20, 20], right=1.0)
    shares, equal = torch.bincount(labels).double() / len(labels), torch.full((CLASSES,), 0.1)
    rows = ClassShares(shares, equal.double(), 1.0, 0.05).balanced_rows(logits)
    assert len(rows) == len(labels)
    counts = torch.bincount(labels[rows], minlength=CLASSES)
    # 560 images, 10 classes: 56 each, but no image counts more than five times as much as on average.
    assert counts.min() > 40
    assert counts.max() < 70


def test_untrusted_shares_leave_every_image_where_it_is() -> None:
    logits, _ = answers([40] * CLASSES)
    assert estimate_shares(logits).balanced_rows(logits).tolist() == list(range(len(logits)))


def test_repulsion_is_even_where_answers_are_spread_as_the_classes_are() -> None:
    """Of images that are sure of their classes, each is repelled by n pi_c others / (J pi_c) = n / J."""
    counts = torch.tensor([60, 30, 10])
    sure = torch.eye(3)[torch.repeat_interleave(torch.arange(3), counts)].requires_grad_()
    repulsion(sure, counts / 100).backward()  # type: ignore[no-untyped-call]
    assert sure.grad is not None
    pushed = torch.stack([sure.grad[row, klass] for row, klass in ((0, 0), (60, 1), (90, 2))])
    # An image does not repel itself: (n pi_c - 1) / (J pi_c) each, times 2 / n.
    expected = torch.tensor([2 / 100 * (count - 1) / (3 * count / 100) for count in counts.tolist()])
    torch.testing.assert_close(pushed, expected)


def test_equal_shares_are_plain_repulsion() -> None:
    probabilities = torch.softmax(torch.randn(8, 4), dim=1)
    torch.testing.assert_close(
        repulsion(probabilities, torch.full((4,), 0.25)), repulsion(probabilities), atol=1e-6, rtol=1e-6
    )


def skewed() -> tuple[Network, ClientData]:
    """Return a network that knows its classes a little, and a client with hardly any but the first."""
    images, labels = blobs(240)
    torch.manual_seed(0)
    network = tiny_network()
    kept = torch.cat([(labels == 0).nonzero()[:60, 0], (labels != 0).nonzero()[:4, 0]])
    return network, ClientData(images[kept], NoiseViews())


def test_shares_go_into_the_head_s_bias_and_are_never_sent() -> None:
    network, data = skewed()
    received, view = snapshot(network.state_dict()), data.views.evaluate
    statistics = SiteStatistics().knowing_classes(network, received, data.images, view)
    assert statistics.shares is not None
    load_at_site(network, received, data.images, view, statistics)
    shifted = received["head.bias"] + statistics.shares.shift
    torch.testing.assert_close(network.head.bias.detach(), shifted.float())
    training = Training(epochs=1, batch_size=8, statistics=statistics)
    package, streams = Package(1, 0.1, {"server": received}), Streams(0, "a", 1)
    reply, _ = local_update(package, {}, data, Objective((Ucon(),)), training, streams, network)
    assert torch.equal(reply.weights["head.bias"], received["head.bias"])
    assert not torch.equal(reply.weights["bottleneck.weight"], received["bottleneck.weight"])
    assert reply.drift == distance(reply.weights, received)


def test_a_site_with_equal_classes_measures_all_of_its_images() -> None:
    network, (images, _) = tiny_network(), blobs(240)
    model, view = snapshot(network.state_dict()), NoiseViews().evaluate
    network.head.weight.data *= 100  # sure answers, of which none is much more frequent
    plain = SiteStatistics(prior=3.0)
    known = plain.knowing_classes(network, model, images, view)
    assert known.shares is None or known.shares.trust > 0
    assert plain.knowing_classes(network, model, images[:1], view) == plain


def test_shares_of_source_training_are_no_news() -> None:
    """A model that was trained on unlike classes expects them: where they are so, little is to be shifted."""
    counts = [200, 100, 50, 20, 10, 5, 5, 5, 3, 2]
    assumed = torch.tensor(counts) / sum(counts)
    logits = answers(counts)[0] + assumed.log()
    told, untold = (estimate_shares(logits, known).shift.abs().mean() for known in (assumed, None))
    assert told < 0.5 * untold


def test_trust_grows_as_shares_become_unlike() -> None:
    trusts = [
        estimate_shares(answers([max(1, round(120 * math.exp(-slope * k))) for k in range(10)])[0]).trust
        for slope in (0.0, 0.2, 0.5, 1.0)
    ]
    assert trusts == sorted(trusts)
    assert trusts[0] == 0
    assert trusts[-1] == 1
