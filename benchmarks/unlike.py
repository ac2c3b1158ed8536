"""How unlike images are to those that a model knows: domains of one data set, another data set, no pictures.

    fedscal data get icons; fedscal data get icons-64; python -m benchmarks.unlike

Prints the least and the greatest unlikeness; more than 1 is warned of. A convnet is trained for 25 epochs on
each domain of icons and of digits. Of a frozen EfficientNet-lite0, features at 160 pixels are compared. 200
images of each domain.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fedscal.core.rng import compute_threads, stream
from fedscal.data import cache
from fedscal.data.registry import benchmark
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.source import source_model
from fedscal.experiment.spec import RunSpec
from fedscal.models.statistics import SiteStatistics, unlikeness

COUNT = 200
Found = tuple[str, str, float]
"""Network, kind of images, unlikeness."""


def sample(name: str, domain: str, shape: tuple[int, ...]) -> Tensor:
    """Return some images of a domain in another shape."""
    images = cache.images(benchmark(name), domain)
    rows = torch.randperm(len(images), generator=stream(0, "sample"))[:COUNT]
    pixels = torch.as_tensor(images[rows]).float()
    if pixels.shape[1] != shape[0]:
        pixels = pixels.mean(dim=1, keepdim=True).expand(-1, shape[0], -1, -1)
    return F.interpolate(pixels, shape[1:], mode="bilinear", antialias=True).round().to(torch.uint8)


def no_pictures(shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    """Yield images that show nothing."""
    draws = stream(0, "no-pictures")
    yield "black", torch.zeros(COUNT, *shape, dtype=torch.uint8)
    yield "noise", torch.randint(256, (COUNT, *shape), generator=draws, dtype=torch.uint8)
    layers = (torch.randn(COUNT, shape[0], s, s, generator=draws) / s**0.5 for s in (2, 4, 8, 16))
    waves = sum(F.interpolate(layer, shape[1:], mode="bicubic") for layer in layers)
    assert isinstance(waves, Tensor)
    low, high = waves.amin((1, 2, 3), keepdim=True), waves.amax((1, 2, 3), keepdim=True)
    yield "textures", (255 * (waves - low) / (high - low)).to(torch.uint8)


def shown(name: str, source: str, other: str, shape: tuple[int, ...]) -> Iterator[tuple[str, Tensor]]:
    """Yield images by their kind, as a model of a source is shown them."""
    for domain in benchmark(name).domains:
        images = sample(name, domain, shape)
        yield "its own" if domain == source else "other domains", images
        yield "inverted", 255 - images
    for domain in benchmark(other).domains:
        yield "another data set", sample(other, domain, shape)
    yield from no_pictures(shape)


def convnet(name: str, source: str, other: str) -> Iterator[Found]:
    """Yield what a trained convnet with BatchNorm makes of the images."""
    spec = RunSpec.make(benchmark=name, source=source, method="fedsite", pretrain_epochs=25)
    experiment = Experiment.build(spec)
    experiment.network.load_state_dict(source_model(experiment).weights)
    for kind, images in shown(name, source, other, experiment.data.shape):
        yield f"convnet, {name}", kind, unlikeness(experiment.network, images, experiment.views.evaluate)


def trunk(experiment: Experiment, source: str) -> Iterator[Found]:
    """Yield what the features of a frozen trunk make of the images; they need no training."""
    assert experiment.bank
    bank, shape, network = experiment.bank, experiment.data.shape, experiment.network

    def features(images: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([bank.trunk(bank.views.evaluate(part)) for part in torch.split(images, 16)])

    SiteStatistics().apply(network, features(sample("icons-64", source, shape)), lambda kept: kept)
    for kind, images in shown("icons-64", source, "digits", shape):
        yield "frozen trunk, icons", kind, unlikeness(network, features(images), lambda kept: kept)


def main() -> None:
    """Print the table."""
    with compute_threads(1):
        pairs = (("icons", "digits"), ("digits", "icons"))
        found = [row for n, o in pairs for s in benchmark(n).domains for row in convnet(n, s, o)]
        keys = {"method": "fedsite", "model": "efficientnet-lite0", "trunk": "frozen", "image_size": 160}
        frozen = Experiment.build(RunSpec.make(benchmark="icons-64", source="outline", **keys))
        found += [row for source in frozen.data.domains for row in trunk(frozen, source)]
    networks, kinds = list(dict.fromkeys(n for n, _, _ in found)), list(dict.fromkeys(k for _, k, _ in found))
    print("| images | " + " | ".join(networks) + " |\n|---|" + "---:|" * len(networks))
    for kind in kinds:
        values = [[far for n, k, far in found if (n, k) == (name, kind)] for name in networks]
        print(f"| {kind} | " + " | ".join(f"{min(v):.2f} to {max(v):.2f}" for v in values) + " |")


if __name__ == "__main__":
    main()
