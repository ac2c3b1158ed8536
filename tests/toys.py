"""Small things that tests are made of: images of three classes, views, networks, models and a driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedscal.client.step import Models, Step
from fedscal.client.training import ClientData
from fedscal.core.types import (
    ClientId,
    Failure,
    Images,
    Judged,
    Memory,
    Metrics,
    Package,
    Prediction,
    Reply,
    Sweep,
    Weights,
)
from fedscal.experiment.callbacks import Callback
from fedscal.experiment.records import RoundRecord
from fedscal.methods import METHODS
from fedscal.models.network import Network
from fedscal.runtime.local import LocalDriver
from fedscal.server.rounds import Round, Schedule, federate
from fedscal.server.rule import Briefing, ServerRule, ServerState

CLASSES = 3
SIDE = 6


class NoiseViews:
    """Views that add noise: little for the weak view, much for the strong one."""

    def evaluate(self, images: Tensor) -> Tensor:
        return images.float() / 255 - 0.5

    def weak(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.evaluate(images) + 0.05 * torch.randn(images.shape, generator=generator)

    def strong(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.evaluate(images) + 0.3 * torch.randn(images.shape, generator=generator)


def blobs(count: int, seed: int = 0, brightness: int = 120) -> tuple[Tensor, Tensor]:
    """Return noisy images in which class c shines in rows 2c and 2c + 1, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    images = torch.randint(0, 120, (count, 1, SIDE, SIDE), generator=generator)
    for row, label in enumerate(labels):
        images[row, 0, 2 * label : 2 * label + 2] += brightness
    return images.to(torch.uint8), labels


def client_data(count: int, seed: int = 0) -> ClientData:
    return ClientData(blobs(count, seed)[0], NoiseViews())


def tiny_network(norm: bool = True, seed: int = 0, backbone_rate: float = 1.0) -> Network:
    """Return one convolution, BatchNorm unless refused, a bottleneck of 5 features and 3 classes."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        middle = [nn.BatchNorm2d(4)] if norm else []
        backbone = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *middle, nn.ReLU(), nn.Flatten())
        return Network(backbone, 4 * SIDE * SIDE, CLASSES, bottleneck=5, backbone_rate=backbone_rate)


def prediction(logits: Tensor | Sequence[Sequence[float]], features: Tensor | None = None) -> Prediction:
    """Return a prediction of given logits, whose features are the logits too unless given."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    return Prediction(logits if features is None else features, logits)


def sweep(logits: Tensor | Sequence[Sequence[float]], features: Tensor | None = None) -> Sweep:
    """Return a pass over all data that gives ``prediction`` of the same."""
    return Sweep(lambda: prediction(logits, features))


def tensor_of(value: Images | Tensor | None) -> Tensor:
    """Return what must be a tensor: images in memory, labels that are there, a gradient."""
    assert isinstance(value, Tensor)
    return value


def backward(loss: Tensor) -> None:
    """Compute the gradients of a loss."""
    loss.backward()  # type: ignore[no-untyped-call]


def sure(*confidences: float, right: int = 0) -> Tensor:
    """Return two-class logits whose softmax gives class ``right`` these probabilities."""
    p = torch.tensor(confidences, dtype=torch.float64)
    other = 1 - p
    columns = [p, other] if right == 0 else [other, p]
    return torch.stack(columns, dim=1).log().float()


def fixed_step(
    weak: Tensor,
    strong: Tensor | None = None,
    server: Prediction | None = None,
    previous: Prediction | None = None,
    once: Prediction | None = None,
    indices: Sequence[int] | None = None,
    features: Tensor | None = None,
    others: Mapping[str, Prediction] | None = None,
) -> Step:
    """Return a step whose views *are* the logits that the current model gives them, and its features."""
    rows = torch.tensor(indices) if indices is not None else torch.arange(len(weak))
    models = Models(
        current=lambda logits: Prediction(logits if features is None else features, logits),
        server=None if server is None else lambda _: server,
        previous=None if previous is None else lambda _: previous,
        server_once=once,
        pairs=list,
        joint=False,
        others=others or {},
    )

    def no_strong() -> Tensor:
        raise AssertionError("nobody needs the strong view here")

    return Step(rows, lambda: weak, no_strong if strong is None else lambda: strong, models)


def gaussians(width: int = 5) -> dict[str, Tensor]:
    """Return three Gaussians of features, each around its own axis."""
    return {"mean": 3 * torch.eye(CLASSES, width), "variance": torch.ones(CLASSES, width)}


def briefing(source: Weights, driver: LocalDriver | None = None, rounds: int = 1) -> Briefing:
    """Return what the server has before the first round; the clients' styles from a driver, if given."""
    layer = tiny_network().first_layer
    return Briefing(source, layer, rounds, gaussians(), driver.profile() if driver else {})


class Kept(dict[ClientId, Memory]):
    """The clients' memories, in main memory."""

    def get(self, client: ClientId, before: object = None) -> Memory:
        return super().get(client, {})

    def put(self, client: ClientId, round_: int, memory: Memory) -> None:
        self[client] = memory


def model(value: float, counter: int = 0) -> dict[str, Tensor]:
    """Return a model of one weight, one running statistic and one counter."""
    return {
        "w": torch.tensor([value, -value]),
        "norm.running_mean": torch.tensor([10 * value]),
        "norm.num_batches_tracked": torch.tensor(counter),
    }


def learns(method: str, adaptation: str) -> bool:
    """Whether a method's clients have something to learn from with an adaptation."""
    return adaptation != "none" or any(part.teaches for part in METHODS[method].regularizers)


def reply(client: ClientId, weights: Weights, round_: int = 1, examples: int = 1) -> Reply:
    return Reply(client, round_, weights, examples, ({"loss": 0.0},))


class Steps:
    """Remembers stages and steps."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.steps = 0

    def stage(self, name: str, total: int) -> None:
        self.stages.append((name, total))

    def advance(self) -> None:
        self.steps += 1


Answers = Callable[[ClientId, Package], Iterable[Reply | Failure]]


def echo(client: ClientId, package: Package) -> list[Reply | Failure]:
    """Answer with the received model moved by one."""
    moved = {n: t + 1 if t.is_floating_point() else t for n, t in package.models["server"].items()}
    return [reply(client, moved, package.round)]


@dataclass
class FakeDriver:
    """A driver whose clients answer as they are told, and that remembers what they were sent."""

    clients: Sequence[ClientId]
    answers: Answers = echo
    sent: list[Mapping[ClientId, Package]] = field(default_factory=list)

    def exchange(self, packages: Mapping[ClientId, Package]) -> Iterator[Reply | Failure]:
        self.sent.append(packages)
        for client, package in packages.items():
            yield from self.answers(client, package)

    def evaluate(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Metrics]:
        return {client: {} for client in models}

    def judge(self, models: Mapping[ClientId, Weights], then: Judged) -> None:
        then(self.evaluate(models), 0.0)

    def compare(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, float]:
        return {}

    def evaluate_own(
        self, replies: Sequence[Reply], received: Mapping[ClientId, Weights]
    ) -> dict[ClientId, Metrics]:
        return {reply.client: {} for reply in replies}

    def statistics(self, models: Mapping[ClientId, Weights]) -> dict[ClientId, Weights]:
        return {}

    def profile(self) -> dict[ClientId, Weights]:
        return {}


def rounds(
    rule: ServerRule, driver: FakeDriver, source: Weights, count: int = 1, rate: float = 1.0
) -> Iterator[Round]:
    return federate(rule, driver, rule.init(Briefing(source, "w")), Schedule(count, rate, 0.1), seed=0)


class Stopped(Exception):
    """Somebody pulled the plug."""


class StopsAfterRoundOne(Callback):
    """Pulls it when all others have been told of the first round."""

    def round(self, record: RoundRecord, state: ServerState | None) -> None:
        """Stop the run."""
        if record.round == 1:
            raise Stopped
