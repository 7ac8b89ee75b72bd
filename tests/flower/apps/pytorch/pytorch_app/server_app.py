"""The ServerApp of the quickstart, with SelectorStrategy in place of FedAvg."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from flsel.flower import SelectorStrategy
from flsel.selectors import PowD
from pytorch_app.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = SelectorStrategy(PowD(d=6), clients=10, clients_per_round=3, seed=1)
    rounds = int(context.run_config["num-server-rounds"])
    result = strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=rounds)
    context.state["arrays"] = result.arrays
