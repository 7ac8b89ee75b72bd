"""The ClientApp of the quickstart, and one call that answers a selector."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flsel.flower import answer
from pytorch_app import task

app = ClientApp()


def data(context: Context):
    return task.load_data(int(context.node_config["partition-id"]))


def model(arrays: ArrayRecord) -> task.Net:
    net = task.Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return net


@app.train()
def train(message: Message, context: Context) -> Message:
    net, (x, y) = model(message.content["arrays"]), data(context)
    task.train(net, x, y)
    metrics = MetricRecord({"num-examples": len(y)})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    x, y = data(context)
    loss = task.losses(model(message.content["arrays"]), x, y).mean().item()
    metrics = MetricRecord({"num-examples": len(y), "eval_loss": loss})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


answer(
    app,
    labels=lambda context: data(context)[1],
    losses=lambda arrays, context: task.losses(model(arrays), *data(context)),
)
