"""The client's optimiser moves weights as torch's does, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedscal.client.descent import Descent
from fedscal.models.network import Network
from toys import SIDE, backward, tiny_network

LR, DECAY, MOMENTUM = 0.3, 1e-2, 0.9
IMAGES = torch.rand(4, 6, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(3))


def loss(network: Network, step: int) -> Tensor:
    """Return a loss that reaches the backbone from the second step on."""
    penalty = network.bottleneck.weight.square().sum()
    return penalty + network(IMAGES[step]).logits.square().mean() if step else penalty


def decayed(step: int) -> float:
    """Return the share of the learning rate that is left, as in source training."""
    return float((1 + 10 * step / len(IMAGES)) ** -0.75)


def by_torch(network: Network, clip: float) -> None:
    optimizer = torch.optim.SGD(
        network.parameter_groups(LR), momentum=MOMENTUM, weight_decay=DECAY, nesterov=True
    )
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, decayed)
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    for step in range(len(IMAGES)):
        optimizer.zero_grad(set_to_none=True)
        backward(loss(network, step))
        torch.nn.utils.clip_grad_norm_(trained, clip)
        optimizer.step()
        decay.step()


def by_descent(network: Network, clip: float) -> None:
    descent = Descent.of(network.parameter_groups(LR), clip, DECAY, MOMENTUM)
    for step in range(len(IMAGES)):
        descent.step(loss(network, step), decayed(step))


@pytest.mark.parametrize("clip", [0.1, 1e9], ids=["clipped", "free"])
def test_a_step_is_that_of_torch_also_where_a_gradient_comes_late(clip: float) -> None:
    ours, theirs = tiny_network(backbone_rate=0.1), tiny_network(backbone_rate=0.1)
    start = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    for network in (ours, theirs):
        network.freeze_head()
    by_descent(ours, clip)
    by_torch(theirs, clip)
    moved = {name for name, tensor in ours.state_dict().items() if not torch.equal(tensor, start[name])}
    assert {"backbone.0.weight", "bottleneck.weight"} <= moved
    assert "head.weight" not in moved
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, ours.state_dict()[name]), name
