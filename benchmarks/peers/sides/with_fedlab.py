"""FedLab's serial trainer and synchronous server, in its standalone pipeline."""

import sys

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from workload import LR, Gate, Workload

work, gate = Workload(sys.argv[1]), Gate()


class Clients:
    def get_dataloader(self, client, batch_size):
        return work.batches(handler.round, client)


class Server(SyncServerHandler):
    def sample_clients(self):
        return work.cohorts[self.round].tolist()


class Pipeline(StandalonePipeline):
    def evaluate(self):
        gate.done(parameters, work.cohorts.shape[1] * work.examples)


def parameters():
    return handler.model.state_dict()


handler = Server(work.model(), len(work.cohorts), work.cohorts.shape[1] / work.clients)
trainer = SGDSerialClientTrainer(work.model(), work.clients)
trainer.setup_dataset(Clients())
trainer.setup_optim(1, None, LR)
gate.ready(parameters)
Pipeline(handler, trainer).main()
