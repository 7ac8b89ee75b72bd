"""The ClientApp of the quickstart, and one call that answers a selector."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flsel.flower import answer
from lightning_app import task

app = ClientApp()


def data(context: Context):
    return task.load_data(int(context.node_config["partition-id"]))


def model(arrays: ArrayRecord) -> task.AutoEncoder:
    net = task.AutoEncoder()
    net.load_state_dict(arrays.to_torch_state_dict())
    return net


def losses(arrays: ArrayRecord, context: Context) -> torch.Tensor:
    with torch.no_grad():
        return model(arrays).losses(data(context)[0])


@app.train()
def train(message: Message, context: Context) -> Message:
    net, (x, y) = model(message.content["arrays"]), data(context)
    task.train(net, x)
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    found = losses(message.content["arrays"], context)
    metrics = MetricRecord({"num-examples": len(found), "eval_loss": found.mean().item()})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


answer(app, labels=lambda context: data(context)[1], losses=losses)
