"""The ClientApp of the quickstart, and one call that answers a selector."""

import warnings

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from flsel.flower import answer
from sklearn_app import task

app = ClientApp()


def data(context: Context) -> tuple[np.ndarray, np.ndarray]:
    return task.load_data(int(context.node_config["partition-id"]))


def model(arrays: ArrayRecord) -> LogisticRegression:
    return task.make_model(arrays.to_numpy_ndarrays())


@app.train()
def train(message: Message, context: Context) -> Message:
    fitted, (x, y) = model(message.content["arrays"]), data(context)
    with warnings.catch_warnings():  # a few iterations are local training: they need not converge
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted.fit(x, y)
    metrics = MetricRecord({"num-examples": len(y)})
    arrays = ArrayRecord([fitted.coef_, fitted.intercept_])
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    x, y = data(context)
    loss = float(task.losses(model(message.content["arrays"]), x, y).mean())
    metrics = MetricRecord({"num-examples": len(y), "eval_loss": loss})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


answer(
    app,
    labels=lambda context: data(context)[1],
    losses=lambda arrays, context: task.losses(model(arrays), *data(context)),
)
