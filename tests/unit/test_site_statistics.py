"""Statistics of a site: what is measured, how it is shrunk, and that it stays where it is."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedscal.client.term import Objective
from fedscal.client.terms.ucon import Ucon
from fedscal.client.training import ClientData, Training, local_update
from fedscal.core.layout import is_statistic
from fedscal.core.rng import Streams
from fedscal.core.types import Package
from fedscal.core.weights import digest, snapshot
from fedscal.models.network import Network, predict
from fedscal.models.statistics import SiteStatistics, load_at_site, measure, unlikeness
from fedscal.runtime.messages import MODEL, Request, Response
from fedscal.runtime.service import ClientService
from toys import NoiseViews, blobs, client_data, tiny_network

VIEW = NoiseViews().evaluate


def standardising_network() -> Network:
    network = tiny_network(norm=False)
    network.standardise_features()
    return network


def test_batch_norm_s_statistics_are_those_of_what_it_receives() -> None:
    network, (images, _) = tiny_network(), blobs(40)
    first = nn.Sequential(*list(network.backbone.children())[:1])
    inputs = first(VIEW(images)).detach().double()
    measured = measure(network, images, VIEW, batch_size=16)
    assert sorted(measured) == ["backbone.1.running_mean", "backbone.1.running_var"]
    torch.testing.assert_close(measured["backbone.1.running_mean"], inputs.mean((0, 2, 3)))
    torch.testing.assert_close(measured["backbone.1.running_var"], inputs.var((0, 2, 3), correction=0))


def test_of_a_network_that_standardises_only_the_features_are_measured() -> None:
    network, (images, _) = tiny_network(), blobs(40)
    network.standardise_features()
    features = network.eval().backbone(VIEW(images)).detach().double()
    measured = measure(network, images, VIEW, batch_size=16)
    assert sorted(measured) == ["standardise.running_mean", "standardise.running_var"]
    torch.testing.assert_close(measured["standardise.running_mean"], features.mean(0))
    torch.testing.assert_close(measured["standardise.running_var"], features.var(0, correction=0))


def test_measuring_changes_nothing_in_the_network() -> None:
    network, (images, _) = tiny_network(), blobs(9)
    network.train()
    before = digest(network.state_dict())
    measure(network, images, VIEW, batch_size=4)  # the last batch is a lone image
    assert digest(network.state_dict()) == before
    assert all(norm.track_running_stats and not norm._forward_pre_hooks for norm in network.norms)


@pytest.mark.parametrize(("network", "limit"), [(standardising_network(), 0.3), (tiny_network(), 0.011)])
def test_unlikeness_is_the_mean_hellinger_distance_in_units_of_the_limit(
    network: Network, limit: float
) -> None:
    images = blobs(40)[0]
    next(iter(network.parameters())).data.mul_(100)  # so that 1e-5 is little beside every variance
    own = measure(network, images, VIEW)
    network.load_state_dict({**network.state_dict(), **own})
    assert unlikeness(network, images, VIEW) == pytest.approx(0, abs=1e-4)
    wider = {name: 4 * value for name, value in own.items() if name.endswith("var")}
    network.load_state_dict({**network.state_dict(), **own, **wider})
    # Deviations 1 and 2 about the same mean: 1 - sqrt(2 * 1 * 2 / (1 + 4)).
    assert limit * unlikeness(network, images, VIEW) == pytest.approx(1 - 0.8**0.5, rel=0.01)
    apart = {n: v + 2 * own[n.replace("mean", "var")].sqrt() for n, v in own.items() if n.endswith("mean")}
    network.load_state_dict({**network.state_dict(), **own, **apart})
    # Two deviations of equal Gaussians between their means: 1 - exp(-4 / 8).
    assert limit * unlikeness(network, images, VIEW) == pytest.approx(1 - math.exp(-0.5), rel=0.01)


def test_of_a_network_without_statistics_nothing_is_known() -> None:
    assert unlikeness(tiny_network(norm=False), blobs(40)[0], VIEW) == 0


def test_a_client_compares_its_images_with_the_model_as_it_came() -> None:
    network, data = tiny_network(), client_data(30)
    model = snapshot(network.state_dict())
    statistics = SiteStatistics()
    training = Training(1, 8, statistics=statistics)
    service = ClientService({"a": data}, {}, network, Objective((Ucon(),)), training, seed=0)
    service.evaluate(["a"], model)  # leaves the client's own statistics in the network
    found = service.handle(Request("compare", ["a"], tensors={MODEL: model}))
    assert isinstance(found, Response)
    network.load_state_dict(model)
    assert found.scalars == {"unlikeness": unlikeness(network, data.images, data.views.evaluate)}
    assert found.scalars["unlikeness"] > 1


def test_one_image_has_no_statistics() -> None:
    assert measure(tiny_network(), blobs(1)[0], VIEW) == {}


@pytest.mark.parametrize(("prior", "share"), [(0, 1.0), (40, 0.5), (1e12, 0.0)])
def test_the_model_s_own_statistics_count_as_so_many_images(prior: float, share: float) -> None:
    network, (images, _) = standardising_network(), blobs(40)
    own = snapshot(network.state_dict())
    measured = measure(network, images, VIEW)
    load_at_site(network, own, images, VIEW, SiteStatistics(prior))
    for name, value in measured.items():
        expected = torch.lerp(own[name].double(), value, share)
        torch.testing.assert_close(network.get_buffer(name).double(), expected, atol=1e-5, rtol=1e-5)


def affine_network(norm: bool) -> Network:
    """Return a network whose statistics are of the pixels themselves."""
    network = Network(nn.Sequential(nn.Flatten(), *([nn.BatchNorm1d(36)] if norm else [])), 36, 3, 5)
    if not norm:
        network.standardise_features()
    return network


@pytest.mark.parametrize("norm", [True, False], ids=["norm", "standardise"])
def test_a_site_whose_images_are_darker_gets_the_same_answers(norm: bool) -> None:
    """An affine change of all pixels is undone by the site's statistics, and without them it is not."""
    network, (images, _) = affine_network(norm), blobs(60)
    model = snapshot(network.state_dict())

    def darker(batch: Tensor) -> Tensor:
        return 0.5 * VIEW(batch) - 0.2

    def logits(view: Callable[[Tensor], Tensor], statistics: SiteStatistics | None) -> Tensor:
        load_at_site(network, model, images, view, statistics)
        return predict(network, images, view).logits

    own = (logits(VIEW, SiteStatistics()) - logits(darker, SiteStatistics())).abs().max()
    shared = (logits(VIEW, None) - logits(darker, None)).abs().max()
    assert own < 0.01 * shared


@pytest.mark.parametrize("network", [tiny_network(), standardising_network()], ids=["norm", "standardise"])
def test_statistics_stay_at_the_site_and_weights_are_sent(network: Network) -> None:
    received = snapshot(copy.deepcopy(network).state_dict())
    training = Training(epochs=1, batch_size=8, statistics=SiteStatistics())
    reply, memory = local_update(
        Package(1, 0.1, {"server": received}),
        {},
        client_data(24),
        Objective((Ucon(),)),
        training,
        Streams(0, "a", 1),
        network,
    )
    assert memory == {}
    for name, tensor in reply.weights.items():
        kept = is_statistic(name) or name.startswith("head.") or not tensor.is_floating_point()
        assert torch.equal(tensor, received[name]) == kept, name
    moved = [name for name in received if is_statistic(name)]
    assert any(not torch.equal(network.state_dict()[name], received[name]) for name in moved)


def test_a_model_is_judged_with_the_statistics_of_each_client() -> None:
    network, model = standardising_network(), snapshot(standardising_network().state_dict())
    (bright, labels), (dim, other) = blobs(40, 1), blobs(40, 2, brightness=30)
    data = {"bright": ClientData(bright, NoiseViews()), "dim": ClientData(dim, NoiseViews())}

    def judged(statistics: SiteStatistics | None) -> dict[str, float]:
        service = ClientService(
            data=data,
            labels={"bright": labels, "dim": other},
            network=network,
            objective=Objective((Ucon(),)),
            training=Training(statistics=statistics),
            seed=0,
        )
        return {client: row["entropy"] for client, row in service.evaluate(["bright", "dim"], model).items()}

    alone = {}
    for client, one in data.items():
        load_at_site(network, model, one.images, VIEW, SiteStatistics())
        alone[client] = float(predict(network, one.images, VIEW).entropies.mean())
    assert judged(SiteStatistics()) == alone
    assert judged(None) != alone
