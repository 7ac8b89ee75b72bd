"""Refuse steps that do more than compute a loss: a replay would not do it again."""

from __future__ import annotations

import contextlib
import io
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from flsel.local.module_snapshot import Kept
from flsel.local.torch_internals import OpOverload, overload, schema
from flsel.rng import plain_states

aten = torch.ops.aten

TURNS = "it gives another loss each time"


class Refused(Exception):
    """The step cannot be traced; the message says what it does."""


class Unstackable(Refused):
    """Nor can it be run for a stack of clients at once."""


@contextlib.contextmanager
def watched(kept: Kept) -> Iterator[None]:
    """Refuse a step that leaves traces of itself elsewhere than in the loss."""
    drawn = plain_states()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        yield
    if plain_states() != drawn:
        raise Unstackable("it draws random numbers")
    if said.getvalue():
        raise Refused("it prints")
    if kept.changed():
        raise Unstackable("it keeps something in the module")


@contextlib.contextmanager
def out_of_place(task: nn.Module) -> Iterator[None]:
    """Let activations return new values: in place, their gradients are written in parts of others."""
    changed = [module for module in task.modules() if getattr(module, "inplace", None) is True]
    for module in changed:
        module.inplace = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for module in changed:
            module.inplace = True  # type: ignore[assignment]


def check(graph: fx.Graph, node: fx.Node) -> None:
    """Refuse what a replay would not repeat; an operation in place becomes one that returns a new value."""
    target = node.target
    if not isinstance(target, OpOverload):
        return
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise Unstackable("it draws random numbers")
    if not schema(target).is_mutable:
        return
    changed = node.args[0]
    plain = getattr(aten, target.overloadpacket.__name__.removesuffix("_"), None)
    if not isinstance(changed, fx.Node) or not hasattr(plain, overload(target)):
        raise Refused("it writes to a tensor in place")
    order = {n: i for i, n in enumerate(graph.nodes)}
    base = root(changed, parts=True)
    family = [n for n in graph.nodes if n not in (changed, node) and root(n, parts=True) is base]
    before = [n for n in family if order[n] < order[node]]
    if any(order[user] > order[node] for n in before for user in n.users):
        raise Refused("it writes to a part of a tensor in place")
    with graph.inserting_after(node):
        value = graph.call_function(getattr(plain, overload(target)), node.args, dict(node.kwargs))
    value.meta = dict(node.meta)
    node.replace_all_uses_with(value)
    changed.replace_all_uses_with(value, lambda user: order.get(user, -1) > order[node])
    graph.erase_node(node)


def is_view(node: fx.Node) -> bool:
    """Tell whether a node looks at its first argument's memory."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema(node.target).returns)


def root(node: fx.Node, *, parts: bool = False) -> fx.Node:
    """Return the node whose memory a view looks at; with ``parts``, each of several results has its own."""
    while is_view(node) and isinstance(node.args[0], fx.Node):
        if parts and node.target is operator.getitem:
            break
        node = node.args[0]
    return node


def _unread(self: Any, *values: Any) -> Any:
    raise Refused("it reads batch_idx")


_USES: Sequence[str] = (
    "abs", "add", "and", "bool", "ceil", "divmod", "eq", "float", "floor", "floordiv", "format", "ge",
    "getattr", "gt", "hash", "index", "int", "invert", "le", "lt", "mod", "mul", "ne", "neg", "or", "pow",
    "radd", "rand", "repr", "rfloordiv", "rmod", "rmul", "ror", "round", "rpow", "rsub", "rtruediv", "str",
    "sub", "truediv", "trunc", "xor",
)  # fmt: skip
# Stands for batch_idx, which a graph would keep as the number it was traced with.
Unread: Any = type("Unread", (), {f"__{name}__": _unread for name in _USES})
