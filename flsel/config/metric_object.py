"""Metrics of torchmetrics among the settings: objects become their class and arguments."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from flsel.arguments.spec import Spec, plain
from flsel.errors import UserError

_KINDS = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def metric_spec(metric: Any, at: int) -> Any:
    """Describe a metric object by its class and what it keeps of its arguments; leave others as they are.

    Args:
        metric: An element of ``evaluation.metrics``.
        at: Its place there, for messages.

    Raises:
        UserError: If the object does not keep an argument, so that no file could repeat it.
    """
    if not isinstance(metric, nn.Module):
        return metric
    made, key = type(metric), f"evaluation.metrics[{at}]"
    arguments = dict[str, Any]()
    for name, parameter in inspect.signature(made.__init__).parameters.items():
        if name == "self" or parameter.kind in _KINDS:
            continue
        if not hasattr(metric, name):
            raise UserError(
                f"{key} is an object that does not keep its argument {name}: give the class with its "
                f"arguments, functools.partial({made.__name__}, {name}=...)."
            )
        value = getattr(metric, name)
        arguments[name] = plain(value.value if hasattr(value, "value") else value, f"{key}.{name}")
    return Spec(f"{made.__module__}.{made.__qualname__}", arguments, key)
