"""Refuse steps that do more than compute a loss: a replay would not do it again."""

from __future__ import annotations

import contextlib
import io
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from flsel.local.compiled.refusals import DRAWS, Refused
from flsel.local.snapshot import ModuleSnapshot
from flsel.local.torch_internals import OpOverload, overload, schema, tree_leaves
from flsel.rng import plain_states

aten = torch.ops.aten


class Convolves(Refused):
    """A step for a stack of models has convolutions, which a CPU computes faster for one model at a time."""


@contextlib.contextmanager
def watched(kept: ModuleSnapshot) -> Iterator[None]:
    """Refuse a step that leaves traces of itself elsewhere than in the loss."""
    drawn, modes = plain_states(), kept.modes()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        yield
    if plain_states() != drawn:
        raise Refused(DRAWS)
    if said.getvalue():
        raise Refused("it prints (take that out)")
    if kept.changed() or kept.modes() != modes:
        raise Refused("it keeps something in the module (a callback may, between rounds)")


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


def check_graph(graph: fx.Graph) -> None:
    """Refuse what a replay would not repeat; operations in place become ones that return new values.

    Raises:
        Refused: If the graph draws, or writes to memory that something else reads later.
    """
    nodes = list(graph.nodes)
    order = {node: i for i, node in enumerate(nodes)}
    families: dict[fx.Node, _Family] = {}
    for node in nodes:
        if _draws(node):
            raise Refused(DRAWS)
        if isinstance(node.target, OpOverload) and schema(node.target).is_mutable:
            node = _out_of_place(graph, node, order, families)
        source: Any = node.args[0] if _shares(node) else None
        families[node] = _Family() if source is None else families[source]
        families[node].add(node, _last_use(node, order))


def _draws(node: fx.Node) -> bool:
    """Tell whether an operation draws random numbers; attention whose dropout is off does not."""
    target = node.target
    if not isinstance(target, OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    named = [(a.name, a.default_value) for a in schema(target).arguments]
    given = dict(zip((name for name, _ in named), node.args, strict=False)) | dict(node.kwargs)
    return dict(named, **given).get("dropout_p") != 0.0


class _Family:
    """Values of a graph that may lie in the same memory."""

    def __init__(self) -> None:
        self._latest: list[tuple[int, fx.Node]] = []  # the two that are read last

    def add(self, node: fx.Node, last_use: int) -> None:
        """Add a value with the place where it is read last."""
        self._latest = sorted([*self._latest, (last_use, node)], key=lambda use: -use[0])[:2]

    def is_read(self, after: int, but: fx.Node) -> bool:
        """Tell whether a value other than one is read after a place."""
        return any(use > after for use, node in self._latest if node is not but)


def _last_use(node: fx.Node, order: dict[fx.Node, int]) -> int:
    return max((order[user] for user in node.users), default=-1)


def _out_of_place(
    graph: fx.Graph, node: fx.Node, order: dict[fx.Node, int], families: dict[fx.Node, _Family]
) -> fx.Node:
    """Put an operation that returns a new value in the place of one that writes to its first argument."""
    target: Any = node.target
    packet = getattr(aten, target.overloadpacket.__name__.removesuffix("_"), None)
    plain = getattr(packet, overload(target), None)
    changed: Any = node.args[0]
    if (
        written(target, node.args, dict(node.kwargs)) != [changed]
        or plain is None
        or schema(plain).is_mutable
    ):
        raise Refused("it writes to a tensor in place (compute a new one)")
    if families[changed].is_read(order[node], changed):
        raise Refused("it writes to a part of a tensor in place (compute a new one)")
    with graph.inserting_after(node):
        value = graph.call_function(plain, node.args, dict(node.kwargs))
    value.meta, order[value] = dict(node.meta), order[node]
    node.replace_all_uses_with(value)
    changed.replace_all_uses_with(value, lambda user: order[user] > order[node])
    graph.erase_node(node)
    return value


def written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[fx.Node]:
    """List what an operation writes to in place."""
    declared = [a for a in schema(func).arguments if a.alias_info is not None and a.alias_info.is_write]
    places = {a.name: i for i, a in enumerate(schema(func).arguments)}
    given = [args[places[a.name]] if places[a.name] < len(args) else kwargs.get(a.name) for a in declared]
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, fx.Node)]


def is_view(node: fx.Node) -> bool:
    """Tell whether a node looks at its first argument's memory."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema(node.target).returns)


def _shares(node: fx.Node) -> bool:
    """Tell whether a node's value lies in its first argument's memory, results of one operation apart."""
    if not is_view(node) or not isinstance(node.args[0], fx.Node):
        return False
    # Each of several results has memory of its own, unless they are parts of what was split.
    return node.target is not operator.getitem or is_view(node.args[0])


def root(node: fx.Node, *, parts: bool = False) -> fx.Node:
    """Return the node whose memory a view looks at; with ``parts``, each of several results has its own."""
    while is_view(node) and isinstance(node.args[0], fx.Node):
        if parts and not _shares(node):
            break
        node = node.args[0]
    return node


def _unread(self: Any, *values: Any) -> Any:
    raise Refused("it reads batch_idx (leave it unread)")


_USES: Sequence[str] = (
    "abs", "add", "and", "bool", "ceil", "divmod", "eq", "float", "floor", "floordiv", "format", "ge",
    "getattr", "gt", "hash", "index", "int", "invert", "le", "lt", "mod", "mul", "ne", "neg", "or", "pow",
    "radd", "rand", "repr", "rfloordiv", "rmod", "rmul", "ror", "round", "rpow", "rsub", "rtruediv", "str",
    "sub", "truediv", "trunc", "xor",
)  # fmt: skip
# Stands for batch_idx, which a graph would keep as the number it was traced with.
Unread: Any = type("Unread", (), {f"__{name}__": _unread for name in _USES})
