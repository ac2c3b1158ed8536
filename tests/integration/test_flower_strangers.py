"""Sites that a federation of real processes must not trust: other software, another name, hostile updates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("flwr")

from flower_processes import ODD_PYTHON, Federation, federation
from flower_world import World
from harness import Zygote, rows, summary
from test_flower_rounds import changed_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OTHER_VERSION = f"""
    import sys
    import fedscal.core.version

    sys.executable = {ODD_PYTHON!r}  # for the process that holds the images, too
    fedscal.core.version.__version__ = "9.9"
"""
HOSTILE = f"""
    import sys
    import torch
    from fedscal.flower import codec, schema

    sys.executable = {ODD_PYTHON!r}
    harm = iter([
        lambda tensor: torch.full_like(tensor, torch.nan),
        lambda tensor: tensor.reshape(-1)[:1].clone(),
        lambda tensor: 1000 * tensor,
        lambda tensor: -1000 * tensor,
    ])
    honest = codec.encode
    schema.Schema.check = lambda *given: None  # whoever attacks does not hold himself to the list

    def encode(header, tensors, models, source, transport):
        if "weights" in tensors:
            change = next(harm)
            model = {{n: change(t) if t.is_floating_point() else t for n, t in tensors["weights"].items()}}
            tensors = {{**tensors, "weights": model}}
        return honest(header, tensors, models, source, transport)

    codec.encode = encode
"""


@pytest.fixture(scope="module")
def machines(world: World, fedscal: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A server, three honest sites, and four others whose keys are registered."""
    folder = tmp_path_factory.mktemp("strangers")
    with federation(world, folder, fedscal.cache, ("old", "classes", "twin", "hostile")) as found:
        model = changed_model(world, folder, classes=[f"corner-{n}" for n in (1, 0, 2, 3)])
        found.site("old", sabotage=OTHER_VERSION)
        found.site("classes", model=model)
        found.site("hostile", sabotage=HOSTILE)
        yield found


def test_who_has_other_software_or_other_classes_is_refused_by_name(machines: Federation) -> None:
    said = {
        "old": "old runs fedscal 9.9 and the server",
        "classes": "classes has another class list than the server",
    }
    runs = {name: machines.run(machines.folder / f"run-{name}", sites=["a", name]) for name in said}
    for name, started in runs.items():
        assert started.wait(300) in (2, 3), started.text
        assert said[name] in started.text
        assert "Traceback" not in started.text
        assert not (machines.folder / f"run-{name}" / "spec.toml").exists()


def test_hostile_updates_are_dropped_by_name_and_the_rounds_go_on(machines: Federation, world: World) -> None:
    out = machines.folder / "hostile"
    started = machines.run(out, "norm_limit=10", "rounds=4", sites=["a", "b", "c", "hostile"])
    assert started.wait(400) == 0, started.text
    failures = [line["failures"] for line in rows(out)[1:]]
    assert [list(named) for named in failures] == [["hostile"]] * 4
    reasons = [named["hostile"] for named in failures]
    assert "NaN" in reasons[0]
    assert "as it must be" in reasons[1]
    assert "times as far as the median client" in reasons[2]
    assert "is negative" in reasons[3]  # a variance times -1000
    honest = world.reference("honest-4", rounds=4)  # a, b and c, as if the fourth had never been there
    assert summary(out)["weights_sha256"] == summary(honest)["weights_sha256"]


def test_a_site_cannot_take_the_name_of_another(machines: Federation) -> None:
    again = machines.site("a", "--retry", 0, "--state", "state-again")
    assert again.wait(120) != 0
    assert "last connection has not lapsed" in again.text
    machines.site("a", key="twin").says("site started")
    started = machines.run(machines.folder / "run-twin", sites=["a", "b"])
    assert started.wait(300) == 2, started.text
    assert "the key that is registered as twin spoke for a" in started.text
