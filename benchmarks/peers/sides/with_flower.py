"""Flower's simulation with its FedAvg: one actor, or two with half of the threads each (argv 2)."""

import os
import sys

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

sys.path.insert(0, os.path.dirname(__file__))
from workload import LR, Gate, Workload

PATH, ACTORS = sys.argv[1], int(sys.argv[2])
THREADS = max(1, int(os.environ["OMP_NUM_THREADS"]) // ACTORS)
# Actors would start at nice 15, and starve where anything else runs.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112


HELD = {}


class Client(NumPyClient):
    def fit(self, parameters, config):
        # An actor keeps data and network, as a user of Flower would have it do.
        if "work" not in HELD:
            torch.set_num_threads(THREADS)
            work = Workload(PATH)
            HELD.update(work=work, model=work.model(), criterion=torch.nn.CrossEntropyLoss())
        work, model, criterion = (HELD[name] for name in ("work", "model", "criterion"))
        model.load_state_dict(
            {n: torch.from_numpy(v) for n, v in zip(model.state_dict(), parameters, strict=True)}
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for x, y in work.batches(config["round"], config["client"]):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
        return [value.numpy() for value in model.state_dict().values()], work.examples, {}


def client_fn(context):
    return Client().to_client()


class Strategy(FedAvg):
    """FedAvg whose cohorts are the workload's; its last act in a round is to wait at the gate."""

    def configure_fit(self, server_round, parameters, client_manager):
        nodes = client_manager.sample(work.cohorts.shape[1], min_num_clients=work.cohorts.shape[1])
        cohort = work.cohorts[server_round - 1].tolist()
        return [
            (node, FitIns(parameters, {"round": server_round - 1, "client": client}))
            for node, client in zip(nodes, cohort, strict=True)
        ]

    def aggregate_fit(self, server_round, results, failures):
        assert not failures, failures
        self.latest, metrics = super().aggregate_fit(server_round, results, failures)
        gate.done(self.parameters, work.cohorts.shape[1] * work.examples)
        return self.latest, metrics

    def parameters(self):
        arrays = parameters_to_ndarrays(self.latest)
        return {str(place): torch.from_numpy(array) for place, array in enumerate(arrays)}


def server_fn(context):
    strategy = Strategy(
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters([v.numpy() for v in work.start.values()]),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=len(work.cohorts)))


if __name__ == "__main__":
    work, gate = Workload(PATH), Gate()
    gate.ready(lambda: work.start)
    run_simulation(
        ServerApp(server_fn=server_fn),
        ClientApp(client_fn=client_fn),
        num_supernodes=work.clients,
        backend_config={
            "client_resources": {"num_cpus": 2 // ACTORS, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
