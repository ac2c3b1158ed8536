"""A whole federation on this machine: server and sites by the commands of a user, over TLS."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedscal.core.module_command import module_command
from fedscal.core.options import Keys, Value
from fedscal.experiment.experiment import Experiment
from fedscal.experiment.source import source_model
from fedscal.experiment.spec import RunSpec
from fedscal.flower.certificates import make_certificates
from fedscal.flower.endpoint import HOST, Endpoint, free_port
from fedscal.flower.launch import Address, local_folder, run_federation
from fedscal.flower.output import Say
from fedscal.flower.processes import RunningProcess, process_group, wait_for

_DATA = {"benchmark": "digits", "source": "mnist"}
_RUN = {"method": "fedscal", "participation": 1, "rounds": 2, "local_epochs": 1}
_LIMITS = {"wait": 300, "round-timeout": 300}
_RETRY = 5


def demo(folder: Path, sites: int, say: Say) -> Path:
    """Adapt a model of mnist to sites with digits of two other kinds; return the run's directory."""
    data: dict[str, Value] = {**_DATA, "clients_per_domain": (sites + 1) // 2}
    experiment = Experiment.build(RunSpec.make(**data))
    say("source model: mnist")
    model = source_model(experiment).path
    names = experiment.clients_of_data().clients[:sites]
    with federation(folder, names, data, model) as endpoint:
        say(f"{len(names)} sites and a server; what they say is in {folder}/*.log")
        keys = {**_RUN, "source_model": str(model), "clients": "flower:" + "+".join(names)}
        run_federation(endpoint, keys, folder / "run", _LIMITS, resume=False, say=say)
    return folder / "run"


@contextmanager
def federation(folder: Path, names: Sequence[str], data: Keys, model: Path) -> Iterator[Endpoint]:
    """Start a server and sites whose images are clients of a data set; end them all."""
    make_certificates(folder / "keys", ["localhost", HOST], names, 30)
    address = Address(HOST, free_port(), folder / "keys" / "ca.crt")
    words = [f"{key}={value}" for key, value in data.items()]
    with process_group() as processes:
        where = ["--host", HOST, "--port", address.port, "--state", folder / "server"]
        processes.append(_command(folder / "server.log", "server", "--keys", folder / "keys", *where))
        wait_for(address.open, processes[0], 120)
        for name in names:
            key = ["--key", folder / "keys" / name / "key", "--model", model, "--state", folder / name]
            link = ["--server", address, "--retry", _RETRY]
            processes.append(_command(folder / f"{name}.log", "site", *words, *key, *link))
        yield Endpoint.read(local_folder(folder / "server"))


def _command(path: Path, *words: object) -> RunningProcess:
    def append(line: str) -> None:
        with path.open("a") as file:
            file.write(line + "\n")

    return RunningProcess(module_command("fedscal", "flower", *words), log=append)
