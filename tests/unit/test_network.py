"""The network: its cost, what is frozen, who learns at which rate, and prediction in evaluation mode."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedscal.core import weights
from fedscal.core.errors import UsageError
from fedscal.models.network import Network, predict
from fedscal.models.registry import build_network
from toys import NoiseViews, blobs, tensor_of, tiny_network


@pytest.fixture
def convnet() -> Network:
    return build_network("convnet", (1, 32, 32), 10)


def test_a_forward_pass_of_the_convnet_costs_about_six_megaflop(convnet: Network) -> None:
    with FlopCounterMode(display=False) as counter:
        found = convnet.eval()(torch.zeros(1, 1, 32, 32))
    assert 5.5e6 < counter.get_total_flops() < 6.5e6
    assert found.features.shape == (1, 256)
    assert found.logits.shape == (1, 10)


def test_there_is_no_batchnorm_behind_the_backbone(convnet: Network) -> None:
    assert len(convnet.norms) == 4
    assert {type(part) for part in (convnet.bottleneck, convnet.head)} == {torch.nn.Linear}


def test_the_same_seed_gives_the_same_network_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    digests = [
        weights.digest(build_network("convnet", (1, 8, 8), 3, seed).state_dict()) for seed in (1, 1, 2)
    ]
    assert digests[0] == digests[1] != digests[2]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_takes_over_all_values_of_a_model_and_copies_them(convnet: Network) -> None:
    other = build_network("convnet", (1, 32, 32), 10, seed=7)
    model = {name: tensor + 1 for name, tensor in reversed(other.state_dict().items())}
    before = weights.digest(model)
    convnet.load(model)
    assert weights.digest(convnet.state_dict()) == before
    model["head.bias"].add_(1)
    assert weights.digest(convnet.state_dict()) == before


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("head.bias", torch.zeros(1)), ("head.other", torch.zeros(10))],
    ids=["shape", "name"],
)
def test_a_model_of_another_network_is_refused(convnet: Network, name: str, tensor: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match=name):
        convnet.load({**convnet.state_dict(), name: tensor})


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'convnet'"):
        build_network("convet", (1, 8, 8), 3)


def test_backbone_and_new_layers_learn_at_their_own_rates() -> None:
    network = tiny_network(backbone_rate=0.1)
    backbone, new = network.parameter_groups(0.5)
    assert (backbone["lr"], new["lr"]) == (pytest.approx(0.05), 0.5)
    assert {id(p) for p in backbone["params"]} == {id(p) for p in network.backbone.parameters()}
    assert len(new["params"]) == 4


def test_a_frozen_head_is_left_out_of_training() -> None:
    network = tiny_network()
    network.freeze_head()
    grouped = {id(p) for group in network.parameter_groups(0.1) for p in group["params"]}
    head = {id(p) for p in network.head.parameters()}
    assert not grouped & head
    assert grouped | head == {id(p) for p in network.parameters()}
    assert not any(p.requires_grad for p in network.head.parameters())


def test_prediction_is_in_evaluation_mode_and_does_not_depend_on_the_batch_size() -> None:
    network, images, views = tiny_network().train(), blobs(7)[0], NoiseViews()
    before = weights.digest(network.state_dict())
    whole = predict(network, images, views.evaluate)
    parts = predict(network, images, views.evaluate, batch_size=3)
    torch.testing.assert_close(parts.logits, whole.logits)
    torch.testing.assert_close(parts.features, whole.features)
    assert weights.digest(network.state_dict()) == before, "statistics must not move"
    assert not whole.logits.requires_grad
    torch.testing.assert_close(network.head(whole.features), whole.logits)


def test_the_statistics_of_efficientnet_can_follow_a_client() -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    network = build_network("efficientnet-lite0", (3, 64, 64), classes=3)
    mean = tensor_of(network.norms[0].running_mean)
    before = mean.clone()
    network.train()(torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    network.eval()
    moved = mean - before
    network.norms[0].momentum = 1.0
    mean.copy_(before)
    network.train()(torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    assert torch.allclose(moved, 0.1 * (mean - before), atol=1e-5)


class Remembers(nn.Linear):
    """A layer whose state is more than its tensors."""

    remembered = 7

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.remembered)

    def set_extra_state(self, state: Tensor) -> None:
        self.remembered = int(state)


def same_tensors(network: Network) -> bool:
    own, state = network.tensors(), network.state_dict()
    return list(own) == list(state) and all(own[n].data_ptr() == state[n].data_ptr() for n in state)


def test_the_tensors_are_those_of_the_state_whatever_becomes_of_the_network() -> None:
    network = build_network("convnet", (1, 8, 8), 3, seed=0)
    assert same_tensors(network)
    twin = copy.deepcopy(network)
    assert same_tensors(twin)
    assert twin.tensors()["head.bias"].data_ptr() != network.tensors()["head.bias"].data_ptr()
    network.double()  # replaces the buffers
    assert same_tensors(network)
    network.float().standardise_features()
    assert same_tensors(network)
    network.take_trunk(0, "convnet", (1, 8, 8))
    assert same_tensors(network)


def test_a_state_that_is_more_than_its_tensors_is_whole() -> None:
    layer = Remembers(4, 5)
    network = Network(nn.Sequential(nn.Flatten(), layer), 5, 3)
    assert list(network.tensors()) == list(network.state_dict())
    assert "backbone.1._extra_state" in network.tensors()
    network.load({**network.tensors(), "backbone.1._extra_state": torch.tensor(8)})
    assert layer.remembered == 8
