"""Where a network computes: on another device, in bfloat16, in pieces; and what is said where it cannot."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from elsewhere import elsewhere
from fedscal.client.training import ClientData, Training, local_update
from fedscal.core import weights
from fedscal.core.errors import OutOfSpace, UsageError
from fedscal.core.rng import Streams
from fedscal.core.types import Package, Prediction, Reply
from fedscal.data.benchmark import Benchmark
from fedscal.data.views import AugmentedViews
from fedscal.experiment.experiment import network_of
from fedscal.experiment.pretrain import SourceTraining, pretrain
from fedscal.experiment.spec import RunSpec
from fedscal.losses import negative_diversity, prediction_entropy
from fedscal.methods import METHODS, build_objective
from fedscal.models import device as place
from fedscal.models.device import computes_in_bfloat16, find_device, microbatched, to_device
from fedscal.models.network import Network
from fedscal.runtime.local import LocalDriver
from fedscal.runtime.service import ClientService
from toys import SIDE, Kept, blobs, tiny_network

VIEWS = AugmentedViews(mean=(0.5,), std=(0.25,), flip=True)
TRAINING = Training(epochs=2, batch_size=8)


@pytest.fixture
def there() -> Iterator[torch.device]:
    with elsewhere() as device:
        yield device


def update(network: Network, method: str = "fedscal", training: Training = TRAINING) -> Reply:
    start = weights.snapshot(network.state_dict())
    models = dict.fromkeys(("server", "teacher", "source"), start)
    data = ClientData(blobs(20)[0], VIEWS)
    objective = build_objective(method, METHODS[method].adaptation, {})
    package = Package(1, 0.05, models)
    return local_update(package, {"previous": start}, data, objective, training, Streams(0, "c", 1), network)[
        0
    ]


def site(network: Network) -> ClientService:
    images, labels = blobs(20)
    data, objective = ClientData(images, VIEWS), build_objective("fedscal", "shot", {})
    return ClientService({"c": data}, {"c": labels}, network, objective, TRAINING, seed=0)


def largest_gap(a: Reply, b: Reply) -> float:
    return max(float((a.weights[name] - b.weights[name]).abs().max()) for name in a.weights)


def test_the_other_device_of_these_tests_refuses_what_a_real_one_refuses(there: torch.device) -> None:
    far, near = torch.ones(2, device=there), torch.ones(2)
    assert (far + far).cpu().tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="two devices"):
        _ = far + near
    with pytest.raises(RuntimeError, match="two devices"):
        _ = near[far.long()]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "source-only"])
def test_training_on_another_device_is_the_same_training(method: str, there: torch.device) -> None:
    here = update(tiny_network(), method)
    moved = update(tiny_network().to(there), method)
    assert largest_gap(here, moved) == 0
    assert moved.epochs == here.epochs
    assert all(tensor.device.type == "cpu" for tensor in moved.weights.values())


def test_judging_and_source_training_work_on_another_device(there: torch.device) -> None:
    start = weights.snapshot(tiny_network().state_dict())
    near, far = (site(network) for network in (tiny_network(), tiny_network().to(there)))
    assert near.evaluate(["c"], start) == far.evaluate(["c"], start)
    recipe = SourceTraining(epochs=2, batch_size=16)
    here, moved = (
        pretrain(network, *blobs(40), VIEWS, recipe, seed=0)
        for network in (tiny_network(), tiny_network().to(there))
    )
    assert weights.digest(here.weights) == weights.digest(moved.weights)
    assert here.accuracy == moved.accuracy


def test_auto_takes_what_there_is_and_a_device_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert find_device("auto").type == find_device("cpu").type == "cpu"
    for name in ("cuda", "mps"):
        with pytest.raises(UsageError, match=f"device={name}: torch sees no such device"):
            find_device(name)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert find_device("auto").type == "mps"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert find_device("auto").type == "cuda"


def test_auto_computes_in_float32_on_the_cpu() -> None:
    cpu = torch.device("cpu")
    assert [computes_in_bfloat16(name, cpu) for name in ("auto", "fp32", "bf16")] == [False, False, True]


def test_bfloat16_is_for_the_backbone_alone_and_near_float32() -> None:
    seen: list[torch.dtype] = []
    network = to_device(tiny_network(norm=False), "cpu", "bf16")
    network.backbone.register_forward_hook(lambda module, images, found: seen.append(found.dtype))
    plain = tiny_network(norm=False)
    reply, exact = update(network), update(plain)
    assert set(seen) == {torch.bfloat16}
    assert {tensor.dtype for tensor in reply.weights.values()} == {torch.float32}
    # bfloat16 keeps 8 bits: a step differs in the third digit, no more, and it does differ.
    assert 0 < largest_gap(reply, exact) < 0.02
    images = VIEWS.evaluate(blobs(4)[0])
    assert network(images).logits.dtype == torch.float32


class Droppy(nn.Module):
    """A backbone with chance in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 7), nn.Tanh(), nn.Dropout(0.5))
        self.sizes: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.sizes.append(len(images))
        features: Tensor = self.layers(images)
        return features


def droppy(dropout: bool) -> tuple[Network, Droppy]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = Droppy()
        network = Network(backbone, 7, 3, bottleneck=5).double()
    return network.train(dropout), backbone


def whole_batch_loss(found: Prediction) -> Tensor:
    """SHOT's information maximisation, which is no mean over images, and something of the features."""
    information = prediction_entropy(found.logits) + negative_diversity(found.logits)
    return information + (found.features @ found.features.T).logsumexp(dim=1).sum()


def gradients(network: Network, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(network.parameters())))


def test_pieces_make_the_gradient_of_the_whole_batch() -> None:
    network, backbone = droppy(dropout=False)
    images = torch.randn(8, 1, SIDE, SIDE, dtype=torch.float64)
    whole = gradients(network, whole_batch_loss(network(images)))
    backbone.sizes.clear()
    loss = whole_batch_loss(microbatched(network, 3)(images))
    assert backbone.sizes == [3, 3, 2]
    for piece, exact in zip(gradients(network, loss), whole, strict=True):
        torch.testing.assert_close(piece, exact, rtol=1e-10, atol=1e-12)
    assert sorted(backbone.sizes) == [2, 2, 3, 3, 3, 3], "each piece is computed again for its gradient"


def test_a_piece_computed_again_meets_the_same_chance() -> None:
    network, _ = droppy(dropout=True)
    images = torch.randn(8, 1, SIDE, SIDE, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        parts = [network(piece) for piece in torch.split(images, 3)]
        joined = Prediction(torch.cat([p.features for p in parts]), torch.cat([p.logits for p in parts]))
        exact = gradients(network, whole_batch_loss(joined))
        torch.manual_seed(1)
        found = gradients(network, whole_batch_loss(microbatched(network, 3)(images)))
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_a_batch_that_fits_is_not_cut_and_0_is_the_network_itself() -> None:
    network, backbone = droppy(dropout=False)
    microbatched(network, 8)(torch.zeros(8, 1, SIDE, SIDE, dtype=torch.float64))
    assert backbone.sizes == [8]
    assert microbatched(network, 0) is network


@pytest.mark.parametrize("method", [name for name in METHODS if name != "source-only"])
def test_every_method_trains_the_same_in_pieces(method: str) -> None:
    whole = update(tiny_network(norm=False), method)
    pieces = update(tiny_network(norm=False), method, replace(TRAINING, micro_batch=3))
    assert largest_gap(whole, pieces) < 1e-5


def test_source_training_is_the_same_in_pieces() -> None:
    recipe = SourceTraining(epochs=2, batch_size=16)
    whole, pieces = (
        pretrain(tiny_network(norm=False), *blobs(40), VIEWS, recipe, seed=0, micro_batch=size)
        for size in (0, 5)
    )
    for name in whole.weights:
        torch.testing.assert_close(pieces.weights[name], whole.weights[name], rtol=1e-4, atol=1e-5)


def test_pieces_are_refused_with_batchnorm(toy_benchmark: Benchmark) -> None:
    spec = RunSpec.make(benchmark="toy", micro_batch=4)
    with pytest.raises(UsageError, match="BatchNorm in tiny are those of a whole batch"):
        network_of(spec, toy_benchmark)


def full(images: Tensor) -> Prediction:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def test_a_full_device_ends_the_run_and_names_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tiny_network()
    start = weights.snapshot(network.state_dict())
    driver = LocalDriver(["c"], [site(network)], Kept())
    monkeypatch.setattr(network, "forward", full)
    with pytest.raises(OutOfSpace, match="set micro_batch"):
        list(driver.exchange({"c": Package(1, 0.05, {"server": start})}))
    with pytest.raises(OutOfSpace, match="set micro_batch"):
        driver.evaluate({"c": start})
    with pytest.raises(OutOfSpace, match="set micro_batch"):
        pretrain(network, *blobs(40), VIEWS, SourceTraining(epochs=1), seed=0)


CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: EPYC 7763
cpu MHz\t\t: {mhz}
flags\t\t: fpu sse2 avx2 {flags}
bogomips\t: 4890.84

processor\t: 1
model name\t: EPYC 7763
"""


def test_the_kind_of_cpu_is_what_decides_its_arithmetic(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(place, "_CPUINFO", path)

    def kind(flags: str = "", mhz: str = "2445.4", name: str = "EPYC 7763") -> str:
        path.write_text(CPUINFO.format(flags=flags, mhz=mhz).replace("EPYC 7763", name))
        return place.processor()

    assert kind().startswith(f"EPYC 7763, {torch.backends.cpu.get_cpu_capability()}, ")
    assert kind() == kind(mhz="1500.0") == kind(flags="ibpb hypervisor")
    assert len({kind(), kind(flags="avx512f"), kind(flags="fma"), kind(name="EPYC 9654")}) == 4
    path.unlink()
    assert platform.machine() in place.processor() or platform.processor() in place.processor()


def test_other_kernels_make_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    here = place.processor()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "OTHER")
    assert place.processor() != here
