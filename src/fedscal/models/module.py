"""A trained ``nn.Module`` of the user's as a network: its last linear layer is the head.

Between its features and the head goes a bottleneck that starts as the identity, so that the network answers
exactly as the module does; this is checked.
"""

from __future__ import annotations

import copy
import json

import torch
from torch import nn

from fedscal.core.errors import ModelRefused, first_line
from fedscal.core.files import sha256
from fedscal.models.network import Network
from fedscal.models.registry import IN_PROCESS, MODELS, PRETRAINED_RATE, Shape

_TOLERANCE = 1e-4
_KEY = 12


def register_module(module: nn.Module) -> str:
    """Make ``model=<name>`` a network around a module; return the name, the same for the same structure.

    A run that another process made with a module can be resumed, and its model loaded, after this.
    """
    tensors = {name: [*tensor.shape] for name, tensor in module.state_dict().items()}
    name = IN_PROCESS + sha256(json.dumps([repr(module), tensors]).encode())[:_KEY]
    kept = copy.deepcopy(module).cpu()
    MODELS[name] = lambda shape, classes: around_classifier(kept, shape, classes)
    return name


def around_classifier(module: nn.Module, shape: Shape, classes: int) -> Network:
    """Return a network that answers as a classifier does; refuse one whose output no last layer makes."""
    module = copy.deepcopy(module).cpu().eval()
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear) and name]
    last = module.get_submodule(linear[-1]) if linear else None
    if not isinstance(last, nn.Linear) or last.out_features != classes:
        raise ModelRefused(f"the module has no last nn.Linear with {classes} outputs, one for every class.")
    images = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    network = _replaced(copy.deepcopy(module), linear[-1], last)
    try:
        with torch.no_grad():
            gap = (module(images) - network.eval()(images).logits).abs().max()
    except Exception as error:
        size = " x ".join(map(str, shape))
        raise ModelRefused(f"the module cannot be used on images of {size}: {first_line(error)}") from error
    if not gap < _TOLERANCE:
        raise ModelRefused(
            "the module's last nn.Linear does not make its output; take off what comes after it, softmax say."
        )
    return network


def _replaced(module: nn.Module, name: str, last: nn.Linear) -> Network:
    """Take a module's last layer out, and return a network with it as the head."""
    module.set_submodule(name, nn.Identity())
    width, classes = last.in_features, last.out_features
    network = Network(module, width, classes, bottleneck=width, backbone_rate=PRETRAINED_RATE)
    with torch.no_grad():
        nn.init.eye_(network.bottleneck.weight)
        nn.init.zeros_(network.bottleneck.bias)
        network.head.weight.copy_(last.weight)
        network.head.bias.copy_(torch.zeros(classes) if last.bias is None else last.bias)
    return network
