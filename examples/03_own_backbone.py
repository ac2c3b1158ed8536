"""Bring a backbone of your own: a function that makes a torch module which turns images into features.

    python examples/03_own_backbone.py

The same from the command line, in the folder of this file:

    fedscal run model=03_own_backbone:pooled_patches source=mnist --allow-code
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

import fedscal


class PooledPatches(nn.Module):
    """Patches of 8 x 8 pixels, averaged at 4 x 4 places."""

    # It starts without weights of its own and learns at the full rate; the default, 0.1, is for one with.
    backbone_rate = 1.0

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, 48, kernel_size=8, stride=4)
        self.pool = nn.AdaptiveAvgPool2d(4)

    def forward(self, images: Tensor) -> Tensor:
        """Return (images, 768) features; how many there are is found out by showing it two images."""
        features: Tensor = self.pool(self.patches(images).relu()).flatten(1)
        return features


def pooled_patches(shape: tuple[int, int, int]) -> nn.Module:
    """Make the backbone for images of (channels, height, width)."""
    return PooledPatches(shape[0])


def main() -> None:
    """Adapt the backbone to digits for two short rounds."""
    fedscal.allow_code()  # a model's name can come from anywhere, so running its code has to be allowed
    model = f"{Path(__file__).stem}:pooled_patches"
    # One process: a worker would look for the module in the working directory, not beside this file.
    keys = {"source": "mnist", "rounds": 2, "local_epochs": 1, "pretrain_epochs": 5, "workers": 1}
    run = fedscal.adapt(fedscal.RunSpec.make(model=model, **keys), Path("runs") / "own-backbone")
    accuracy = run.summary().accuracy
    print(f"average {accuracy.source_only.average:.1f} % -> {accuracy.last.average:.1f} %")
    print(fedscal.write_report(run.path))


if __name__ == "__main__":
    main()
