"""Adapt a classifier of your own, an ``nn.Module``, to tensors of two sites: the last lines of ``main``.

    python examples/04_own_tensors.py

The module's last ``nn.Linear`` must make the logits. The labels beside the sites' images only measure.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import fedscal

CLASSES = ["first", "second", "third", "fourth"]


def bars(count: int, light: float, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Draw uint8 images of 16 x 16 with a bar in one of four places; return them and the places."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    images = noise * torch.rand(count, 1, 16, 16, generator=generator)
    for row, label in enumerate(labels):
        images[row, 0, 4 * label + 1 : 4 * label + 3, 3:13] += light
    return (255 * images.clamp(0, 1)).to(torch.uint8), labels


def trained_classifier() -> nn.Module:
    """Train a small classifier on bright bars, as somebody did long ago."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 5, padding=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(8 * 8 * 8, len(CLASSES)))
    optimizer = torch.optim.Adam(model.parameters(), 0.003)
    images, labels = bars(256, light=0.8, noise=0.3, seed=0)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images / 255), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def main() -> None:
    """Adapt it to sites whose images are darker and noisier."""
    sites = {"dusk": bars(200, 0.15, 0.7, seed=1), "night": bars(200, 0.1, 0.6, seed=2)}
    model, out = trained_classifier(), "runs/own-tensors"
    run = fedscal.adapt(model, sites, out=out, classes=CLASSES, rounds=4, progress=True)
    accuracy = run.summary().accuracy
    print(f"average {accuracy.source_only.average:.1f} % -> {accuracy.last.average:.1f} %")
    print(fedscal.predict(run, sites["dusk"][0][:5], site="dusk"))
    print(fedscal.write_report(run))


if __name__ == "__main__":
    main()
