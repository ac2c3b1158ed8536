"""Models of the user's own: code runs only where it is allowed, and what is wrong with it is said."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedscal.core.errors import ModelRefused, UsageError
from fedscal.core.user_code import PERMISSION, allow_code
from fedscal.experiment.spec import RunSpec
from fedscal.models.custom import is_factory
from fedscal.models.registry import build_network, check_model, fingerprint

SHAPE = (1, 8, 8)
CODE = """
import pathlib
from torch import nn

pathlib.Path("imported").touch()
number = 3

class Flat(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0] * shape[1] * shape[2], 7)
    def forward(self, images):
        return self.layer(images.flatten(1))

def flat(shape): return Flat(shape)

def fresh(shape):
    made = Flat(shape)
    made.backbone_rate = 1.0
    return made

def broken(shape): raise ValueError("no such luck")
def nothing(shape): return "text"
def maps(shape): return nn.Conv2d(shape[0], 2, 3)
def wrong_size(shape): return nn.Sequential(nn.Flatten(), nn.Linear(5, 5))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module in the working directory that leaves a trace when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv(PERMISSION, raising=False)
    file = tmp_path / "my_backbones.py"
    file.write_text(CODE)
    yield file
    sys.modules.pop("my_backbones", None)


@pytest.fixture
def allowed(module: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PERMISSION, "0")  # so that what allow_code sets is taken back
    allow_code()
    return module


def test_code_is_refused_unless_allowed_and_nothing_is_imported(module: Path) -> None:
    for work in (lambda name: build_network(name, SHAPE, 3), fingerprint):
        with pytest.raises(UsageError, match="--allow-code"):
            work("my_backbones:flat")
    assert not (module.parent / "imported").exists()
    assert RunSpec.make(model="my_backbones:flat").model == "my_backbones:flat", "a spec may be read"


@pytest.mark.parametrize("name", ["allow_code", "allow-code", "code"])
def test_no_recipe_and_no_key_can_allow_code(name: str) -> None:
    with pytest.raises(UsageError, match="unknown key"):
        RunSpec.make(**{name: True})


def test_a_factory_makes_the_backbone(allowed: Path) -> None:
    network = build_network("my_backbones:flat", SHAPE, 3, seed=1)
    assert (network.bottleneck.in_features, network.bottleneck.out_features) == (7, 256)
    assert network.backbone_rate == 0.1, "the paper's, for a backbone that comes with weights"
    assert build_network("my_backbones:fresh", SHAPE, 3).backbone_rate == 1.0
    again = build_network("my_backbones:flat", SHAPE, 3, seed=1)
    assert again.head.weight.equal(network.head.weight)


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("my_backbones:broken", ModelRefused, "failed: ValueError: no such luck"),
        ("my_backbones:nothing", ModelRefused, "returned str, not a torch.nn.Module"),
        ("my_backbones:maps", ModelRefused, r"makes \(2, 2, 6, 6\) of two images, not \(2, features\)"),
        ("my_backbones:wrong_size", ModelRefused, "cannot take images of 1 x 8 x 8: mat1 and mat2"),
        ("my_backbones:absent", UsageError, "has no function 'absent'"),
        ("my_backbones:number", UsageError, "has no function 'number'"),
        ("no_such_module:flat", UsageError, "cannot be imported"),
    ],
)
def test_a_factory_that_does_not_do_is_refused_in_a_sentence(
    allowed: Path, name: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as found:
        build_network(name, SHAPE, 3)
    assert "\n" not in str(found.value)


def test_a_changed_file_is_another_model(allowed: Path) -> None:
    before = fingerprint("my_backbones:flat")
    allowed.write_text(CODE + "# other\n")
    assert fingerprint("my_backbones:flat") != before


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("os:system", True),
        ("a.b.c:make", True),
        ("hf:vit", False),
        ("timm:resnet18", False),
        ("convnet", False),
        ("a.b:", False),
        (":make", False),
        ("a b:c", False),
        ("a:b:c", False),
        ("../x:f", False),
    ],
)
def test_what_is_a_factorys_name(name: str, expected: bool) -> None:
    assert is_factory(name) is expected


def test_a_name_that_is_none_lists_the_kinds() -> None:
    with pytest.raises(UsageError, match=r"hf:<folder or repository>.*timm:<name>.*package\.module:factory"):
        check_model("../x:f")
