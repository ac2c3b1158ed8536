"""What every row of METHODS with every row of ADAPTATIONS must keep; a new row is covered by being there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from test_every_combination import PAIRS
from torch import Tensor

from fedscal.client.step import Forward, Models, Step
from fedscal.client.style import style
from fedscal.client.term import Need, Objective, Term
from fedscal.client.training import Training, local_update
from fedscal.core import weights
from fedscal.core.errors import UsageError
from fedscal.core.options import options_of
from fedscal.core.rng import Streams
from fedscal.core.types import Memory, Package, Prediction, Reply, Sweep
from fedscal.methods import ADAPTATIONS, METHODS, build_objective, build_rule, hyperparameters
from fedscal.models.network import Network, predict
from fedscal.server.rule import Briefing
from toys import CLASSES, NoiseViews, backward, client_data, gaussians, learns, tensor_of, tiny_network

COUNT = 8
CLIENTS = ("a", "b", "c")
DATA = client_data(COUNT)
TRAINING = Training(epochs=2, batch_size=4)
TEACHING = [adaptation for adaptation in ADAPTATIONS if adaptation != "none"]
REGULARIZERS = sorted(
    {part for row in METHODS.values() for part in row.regularizers}, key=lambda part: part.__name__
)


def variants(part: type[Term]) -> Iterator[Any]:
    """Yield a pytest parameter for the term with its defaults, and for each choice and switch it offers."""
    yield pytest.param(part(), id=part.__name__)
    for name, declared in options_of(part).items():
        values = declared.choices or ((True, False) if declared.kind is bool else ())
        for value in values:
            if value != declared.default:
                yield pytest.param(part(**{name: value}), id=f"{part.__name__}-{name}={value}")


TERMS = [case for part in [*ADAPTATIONS.values(), *REGULARIZERS] for case in variants(part)]


class Recorded:
    """A model that counts its calls."""

    def __init__(self, forward: Forward) -> None:
        self.calls = 0
        self._forward = forward

    def __call__(self, images: Tensor) -> Prediction:
        self.calls += 1
        return self._forward(images)


class Bench:
    """One step of a tiny client, with every optional model there, counted."""

    def __init__(self) -> None:
        self.network = tiny_network()
        self.network.freeze_head()
        self.current = Recorded(self.network)
        self.server = Recorded(tiny_network(seed=1).eval())
        self.previous = Recorded(tiny_network(seed=2).eval())
        self.strong_draws = 0
        seen = predict(self.network, DATA.images, DATA.views.evaluate)
        self.sweep = Sweep(lambda: seen)
        self.once = predict(tiny_network(seed=1), DATA.images, DATA.views.evaluate)
        self.received = [(p, p.detach() + 0.01) for p in self.network.parameters() if p.requires_grad]
        self.network.train()

    def step(self, **changed: Any) -> Step:
        given: dict[str, Any] = {
            "current": self.current,
            "server": self.server,
            "previous": self.previous,
            "server_once": self.once,
            "pairs": lambda: self.received,
            "joint": False,
            "others": {"teacher": self.once, "source": self.once},
            "draws": generator(),
        }
        indices = torch.tensor([5, 0, 2, 7])
        images = DATA.images[indices]
        return Step(
            indices,
            lambda: NoiseViews().weak(images, generator()),
            lambda: self._strong(images),
            Models(**given | changed),
        )

    def _strong(self, images: Tensor) -> Tensor:
        self.strong_draws += 1
        return NoiseViews().strong(images, generator())


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def assert_state_is_of_tensors(state: dict[str, Tensor]) -> None:
    assert all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items())
    assert not any(tensor.requires_grad for tensor in state.values()), "a state must not keep a graph alive"


@pytest.mark.parametrize("term", TERMS)
def test_a_term_gives_a_finite_loss_finite_gradients_and_a_state_of_tensors(term: Term) -> None:
    bench = Bench()
    state = term.prepare(bench.sweep, None)
    assert_state_is_of_tensors(state)
    before = weights.digest(state)
    value, after = term.loss(bench.step(), state)
    assert value.shape == ()
    assert torch.isfinite(value)
    assert weights.digest(state) == before, "loss returns a new state and leaves the old one"
    assert_state_is_of_tensors(after)
    assert_state_is_of_tensors(term.prepare(bench.sweep, after))
    assert all(after[name].ndim == 0 for name in term.scalars), "what is recorded is a scalar of the state"
    if value.requires_grad:
        backward(value)
    gradients = [p.grad for p in bench.network.parameters() if p.grad is not None]
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("term", TERMS)
def test_a_term_makes_exactly_the_passes_that_it_declares(term: Term) -> None:
    bench = Bench()
    step = bench.step()
    term.loss(step, term.prepare(bench.sweep, None))
    made = {
        Need.STRONG: bench.strong_draws,
        Need.SERVER: bench.server.calls,
        Need.PREVIOUS: bench.previous.calls,
        Need.MIXED: "mixed" in vars(step),
    }
    assert {need for need, count in made.items() if count} == term.needs & made.keys()


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize(("need", "field"), [(Need.SERVER, "server"), (Need.SERVER_ONCE, "server_once")])
def test_a_missing_model_is_missed_only_by_a_term_that_declares_it(
    term: Term, need: Need, field: str
) -> None:
    bench = Bench()
    step, state = bench.step(**{field: None}), term.prepare(bench.sweep, None)
    if need in term.needs:
        with pytest.raises(LookupError, match=f"{need}$".replace(".", r"\.")):
            term.loss(step, state)
    else:
        assert torch.isfinite(term.loss(step, state)[0])


@pytest.mark.parametrize("term", TERMS)
def test_every_term_can_do_without_a_previous_model(term: Term) -> None:
    bench = Bench()
    value, _ = term.loss(bench.step(previous=None), term.prepare(bench.sweep, None))
    assert torch.isfinite(value)


@pytest.mark.parametrize("term", TERMS)
def test_a_term_survives_predictions_that_are_all_certain_of_one_class(term: Term) -> None:
    bench = Bench()
    scale = torch.tensor(60.0, requires_grad=True)

    def certain(images: Tensor) -> Prediction:
        logits = scale * torch.eye(CLASSES)[1].expand(len(images), CLASSES)
        return Prediction(scale * torch.ones(len(images), 5), logits)

    with torch.no_grad():
        state = term.prepare(Sweep(lambda: certain(tensor_of(DATA.images))), None)
    value, _ = term.loss(bench.step(current=certain), state)
    assert torch.isfinite(value)
    if value.requires_grad:
        (gradient,) = torch.autograd.grad(value, scale, allow_unused=True)
        assert gradient is None or torch.isfinite(gradient)


@cache
def package(method: str) -> Package:
    """Return what the method's server sends client a in its second round; every other client stood still."""
    rule, source = build_rule(method, {}), weights.snapshot(tiny_network().state_dict())
    profiles = {client: style(client_data(4, seed).images) for seed, client in enumerate(CLIENTS)}
    state = rule.init(
        Briefing(source, "backbone.0.weight", rounds=1, gaussians=gaussians(), profiles=profiles)
    )
    objective = build_objective(method, METHODS[method].adaptation, {})
    for round_ in (1,) if rule.trains else ():
        sent = Package(round_, 0.05, rule.send(state, "a"))
        answers = [
            local_update(sent, {}, DATA, objective, TRAINING, Streams(0, c, round_), tiny_network())[0]
            for c in CLIENTS
        ]
        state = rule.merge(state, answers)
    return Package(2, 0.05, rule.send(state, "a"))


def update(
    objective: Objective, memory: Memory, network: Network | None = None, method: str = "fedloa"
) -> tuple[Reply, Memory]:
    return local_update(
        package(method), memory, DATA, objective, TRAINING, Streams(0, "a", 1), network or tiny_network()
    )


def remembered(objective: Objective, method: str) -> Memory:
    """Return what the client would remember of an earlier round that ended elsewhere."""
    kept = update(objective, {}, method=method)[1]
    return {group: weights.snapshot(tiny_network(seed=9).state_dict()) for group in kept}


@pytest.mark.parametrize(("method", "adaptation"), PAIRS)
def test_an_update_is_finite_moves_the_model_and_repeats_bit_for_bit(method: str, adaptation: str) -> None:
    objective = build_objective(method, adaptation, {})
    memory = remembered(objective, method)
    network = tiny_network()
    first, kept = update(objective, memory, method=method)
    second, kept_again = update(objective, memory, network, method)
    third, _ = update(objective, memory, network, method)
    assert weights.first_not_finite(first.weights) is None
    assert first.drift > 0
    assert weights.digest(weights.flatten(first.reports)) == weights.digest(weights.flatten(third.reports))
    assert weights.digest(first.weights) == weights.digest(second.weights) == weights.digest(third.weights)
    assert weights.digest(weights.flatten(kept)) == weights.digest(weights.flatten(kept_again))
    assert all(torch.isfinite(torch.tensor(value)) for epoch in first.epochs for value in epoch.values())
    assert first.epochs[0].keys() - {"entropy"} == {"loss", *objective.recorded}
    waited_for = build_rule(method, {}).reports(package(method).models)
    assert weights.unlike(weights.flatten(first.reports), weights.flatten(waited_for)) is None


@pytest.mark.parametrize(("method", "adaptation"), PAIRS)
def test_an_update_leaves_package_memory_and_images_untouched(method: str, adaptation: str) -> None:
    objective = build_objective(method, adaptation, {})
    memory, images = remembered(objective, method), tensor_of(DATA.images).clone()
    groups = (package(method).models, memory)
    before = [weights.digest(weights.flatten(group)) for group in groups]
    update(objective, memory, tiny_network(seed=5), method)
    assert [weights.digest(weights.flatten(group)) for group in groups] == before
    assert torch.equal(tensor_of(DATA.images), images)


@pytest.mark.parametrize(("method", "adaptation"), PAIRS)
def test_the_head_moves_only_where_the_method_trains_it(method: str, adaptation: str) -> None:
    objective, network = build_objective(method, adaptation, {}), tiny_network()
    network.freeze_head(objective.trains_head)  # as another objective may have left it
    head = update(objective, {}, network, method)[0].weights["head.weight"]
    start = weights.snapshot(tiny_network().state_dict())["head.weight"]
    if METHODS[method].rule.trains and "server" in package(method).models:
        start = package(method).models["server"]["head.weight"]
        assert torch.equal(head, start) is not METHODS[method].trains_head


@pytest.mark.parametrize(
    ("method", "adaptation"),
    [(name, "none") for name, row in METHODS.items() if row.rule.trains and not learns(name, "none")],
)
def test_an_empty_adaptation_is_refused_where_nothing_else_teaches(method: str, adaptation: str) -> None:
    assert method in {"loa", "fedloa", "fedprox", "fedmoon"}
    with pytest.raises(UsageError, match=f"adaptation=none: {method} has nothing else"):
        build_objective(method, adaptation, {})


@pytest.mark.parametrize(("method", "adaptation"), PAIRS)
def test_memory_is_made_of_tensors_that_can_be_written(method: str, adaptation: str) -> None:
    _, kept = update(build_objective(method, adaptation, {}), {}, method=method)
    flat = weights.flatten(kept)
    assert weights.digest(weights.from_bytes(weights.to_bytes(flat), "memory")) == weights.digest(flat)


def weight_options(part: type) -> list[str]:
    return [name for name, declared in options_of(part).items() if declared.weight]


@pytest.mark.parametrize("adaptation", TEACHING)
@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if row.regularizers])
def test_a_regularizer_whose_weights_are_zero_leaves_fedloas_bits(method: str, adaptation: str) -> None:
    parts = METHODS[method].regularizers
    assert all(weight_options(part) for part in parts), "declare weights as option(..., weight=True)"
    off = build_objective(method, adaptation, {name: 0.0 for part in parts for name in weight_options(part)})
    plain = replace(off, terms=build_objective("fedloa", adaptation, {}).terms)
    found, expected = (update(objective, {}, method=method)[0] for objective in (off, plain))
    assert weights.digest(found.weights) == weights.digest(expected.weights)
    assert off.needs == plain.needs


@pytest.mark.parametrize("adaptation", TEACHING)
@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if row.regularizers])
def test_a_regularizer_that_is_on_changes_the_update(method: str, adaptation: str) -> None:
    # The toys' predictions are unsure: at the usual threshold alignment may keep none of them.
    on = build_objective(method, adaptation, {"tau_init": 0.4, "lambda_discrepancy": 1.0})
    plain = replace(on, terms=build_objective("fedloa", adaptation, {}).terms)
    memory = remembered(on, method)
    found, other = (update(objective, memory, method=method)[0] for objective in (on, plain))
    assert weights.digest(found.weights) != weights.digest(other.weights)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_it_is_and_where_it_comes_from(name: str) -> None:
    row = METHODS[name]
    assert name == name.lower()
    assert all(text.strip() for text in (row.title, row.idea, row.reference))
    assert any(character.isdigit() for character in row.reference), "a reference has a year"
    assert row.rule.__doc__
    assert all(part.__doc__ for part in row.regularizers)


@pytest.mark.parametrize("part", [*ADAPTATIONS.values(), *REGULARIZERS], ids=lambda part: part.__name__)
def test_every_part_is_a_term_with_a_name_of_its_own(part: Callable[[], Term]) -> None:
    term = part()
    assert isinstance(term, Term)
    assert [other.name for other in (p() for p in [*ADAPTATIONS.values(), *REGULARIZERS])].count(
        term.name
    ) == 1


@pytest.mark.parametrize(
    "declared",
    [
        pytest.param(o, id=f"{part.__name__}.{o.name}")
        for found in hyperparameters().values()
        for part, o in found
    ],
)
def test_every_hyperparameter_has_help_and_a_default_that_it_accepts(declared: Any) -> None:
    assert declared.text.strip()
    assert declared.parse(declared.default) == declared.default
    assert declared.parse(str(declared.default)) == declared.default
