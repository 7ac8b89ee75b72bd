"""FLGo's FedAvg on a task of its own making, one process."""

import tempfile
from pathlib import Path

import flgo
import flgo_fashion
import torch
from flgo.algorithm import fedavg
from flgo.benchmark.partition import IIDPartitioner
from flgo_fashion.core import work
from workload import LR, Gate

gate = Gate()


class Server(fedavg.Server):
    def sample(self):
        return work.cohorts[self.current_round - 1].tolist()

    def iterate(self):
        updated = super().iterate()
        gate.done(parameters, work.cohorts.shape[1] * work.examples)
        return updated


class Client(fedavg.Client):
    """A client whose batches are the workload's; FLGo trains on them."""

    def train(self, model):
        self.batches = work.batches(self.server.current_round - 1, self.id)
        super().train(model)

    def get_batch_data(self):
        return next(self.batches)


class FedAvg:
    Server, Client = Server, Client


def parameters():
    return runner.model.state_dict()


with tempfile.TemporaryDirectory() as folder:
    task = flgo.gen_task_by_(
        flgo_fashion, IIDPartitioner(num_clients=work.clients), str(Path(folder, "task"))
    )
    runner = flgo.init(
        task,
        FedAvg,
        model=flgo.convert_model(lambda: work.model()),
        option={
            "num_rounds": len(work.cohorts),
            "proportion": work.cohorts.shape[1] / work.clients,
            "num_steps": work.steps,
            "learning_rate": LR,
            "train_holdout": 0.0,
            "eval_interval": -1,
            "torch_num_threads": torch.get_num_threads(),
            "no_tqdm": True,
        },
    )
gate.ready(parameters)
runner.run()
