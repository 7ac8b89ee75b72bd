"""pfl-research's federated averaging on its simulated backend, one process."""

import sys

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from workload import LR, Gate, Workload

work, gate = Workload(sys.argv[1]), Gate()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.criterion = work.model(), torch.nn.CrossEntropyLoss()

    def loss(self, x, y):
        self.train()
        return self.criterion(self.net(x), y)

    def metrics(self, x, y):
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class Client(Dataset):
    """Its batches in one round; the id holds both."""

    def __init__(self, number):
        self.round, self.client = divmod(int(number), work.clients)
        super().__init__(raw_data=[], user_id=str(number))

    def __len__(self):
        return work.examples

    def iter(self, batch_size):
        return work.batches(self.round, self.client)


class Turn(TrainingProcessCallback):
    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        gate.done(parameters, work.cohorts.shape[1] * work.examples)
        return False, Metrics()


def parameters():
    return model.pytorch_model.net.state_dict()


numbers = iter([round * work.clients + client for round, row in enumerate(work.cohorts) for client in row])
data = FederatedDataset(Client, lambda: next(numbers))
net = Net()
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
gate.ready(parameters)
FederatedAveraging().run(
    algorithm_params=NNAlgorithmParams(
        central_num_iterations=len(work.cohorts),
        evaluation_frequency=10**6,
        train_cohort_size=work.cohorts.shape[1],
        val_cohort_size=0,
    ),
    backend=SimulatedBackend(training_data=data, val_data=data),
    model=model,
    model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=None),
    callbacks=[Turn()],
)
