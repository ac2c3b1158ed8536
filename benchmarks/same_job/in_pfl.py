"""The job in pfl-research: ``python -m benchmarks.same_job.in_pfl CLIENTS``.

It averages trained parameters alone, where the others average the statistics of BatchNorm too.
"""

from __future__ import annotations

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.same_job import job


class Model(nn.Module):
    """The network with its loss, as pfl-research asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = job.network()
        self.draws = torch.Generator().manual_seed(0)

    def loss(self, images: Tensor, _: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return job.loss(self.network, images, self.draws)

    def metrics(self, images: Tensor, _: Tensor) -> dict[str, Weighted]:
        """Return nothing of weight: nobody evaluates."""
        return {"images": Weighted(len(images), len(images))}


class Watch(TrainingProcessCallback):  # type: ignore[misc]
    """Looks at the clock at the end of each round."""

    def __init__(self) -> None:
        self.ended: list[job.Clock] = []

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """End a round."""
        self.ended.append(job.Clock.now())
        return False, Metrics()


def user(number: int) -> Dataset:
    """Return a client's data."""
    return Dataset([job.images_of(number), torch.zeros(job.IMAGES)], user_id=str(number))


def main() -> None:
    """Play the rounds; say how long all but the first took."""
    clients, watch = job.clients(), Watch()
    module = Model()
    model = PyTorchModel(module, job.optimizer, torch.optim.SGD(module.parameters(), lr=1.0))
    data = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(clients))))
    FederatedAveraging().run(
        # It evaluates in every round whose number can be divided by the frequency: in round 0, no more.
        NNAlgorithmParams(job.ROUNDS, 1_000_000, clients, 0),
        SimulatedBackend(data, None),
        model,
        NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=job.LR,
            local_batch_size=None,
            local_max_grad_norm=job.CLIP,
        ),
        callbacks=[watch],
    )
    job.tell(watch.ended[0], watch.ended[-1])


if __name__ == "__main__":
    main()
