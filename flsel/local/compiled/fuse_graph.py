"""Rewrite a traced graph into fewer operations of the same numbers, and split it by how often they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, fx

from flsel.local.compiled.record_graph import Made, Recording, callable_of
from flsel.local.compiled.trace import Traced
from flsel.local.torch_internals import LOG_SOFTMAX, LOG_SOFTMAX_BACKWARD, TO_COPY

aten = torch.ops.aten

_SAME = (aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift_fresh_copy.default)
_FILLED = {
    aten.ones_like.default: 1,
    aten.zeros_like.default: 0,
    aten.new_ones.default: 1,
    aten.new_zeros.default: 0,
}
_RESHAPED = (aten.expand.default, aten.view.default, aten.unsqueeze.default)
_SCALES = (aten.mul.Scalar, aten.mul.Tensor, aten.div.Scalar, aten.div.Tensor)


def fuse_graph(module: Recording, home: torch.device) -> None:
    """Rewrite a graph in place; tensors that it makes are on the device ``home``."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op == "call_function":
            _simplify(graph, node, home)
    graph.eliminate_dead_code()
    merge_equal(graph)
    for node in list(graph.nodes):
        if node.op == "call_function":
            _fuse(graph, node)
    merge_equal(graph)
    graph.eliminate_dead_code()
    _fold(module)


def _fold(module: Recording) -> None:
    """Compute once what depends on no input."""
    constants: dict[fx.Node, Any] = {}
    with torch.no_grad():
        for node in list(module.graph.nodes):
            if node.op == "get_attr":
                constants[node] = getattr(module, node.target)
            elif node.op == "call_function" and all(n in constants for n in node.all_input_nodes):
                args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), constants.__getitem__)
                constants[node] = node.target(*args, **kwargs)
    for node, value in constants.items():
        if node.op == "call_function" and isinstance(value, Tensor):
            name = f"folded_{node.name}"
            module.register_buffer(name, value, persistent=False)
            with module.graph.inserting_before(node):
                folded = module.graph.get_attr(name)
            folded.meta = dict(node.meta)
            node.replace_all_uses_with(folded)
    module.graph.eliminate_dead_code()


def shape_of(node: Any) -> tuple[int, ...] | None:
    """Return the shape of a node's value, or None if that is not one tensor."""
    made: Made | None = node.meta.get("made") if isinstance(node, fx.Node) else None
    return None if made is None else made.shape


def dtype_of(node: fx.Node) -> torch.dtype:
    """Return the dtype of a node's value, a tensor."""
    made: Made = node.meta["made"]
    return made.dtype


def merge_equal(graph: fx.Graph) -> None:
    """Let nodes that compute the same be one; the graph mutates nothing."""
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op == "get_attr":
            key: Any = ("get_attr", node.target)
        elif node.op == "call_function":
            key = (node.target, _frozen(node.args), _frozen(node.kwargs))
        else:
            continue
        known = seen.setdefault(key, node)
        if known is not node:
            _swap(graph, node, known)


def _frozen(value: Any) -> Any:
    """Make arguments hashable; 1, 1.0 and True are three values."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _frozen(value[key])) for key in sorted(value))
    return value if isinstance(value, fx.Node) else (type(value), value)


def _swap(graph: fx.Graph, node: fx.Node, other: fx.Node) -> None:
    node.replace_all_uses_with(other)
    graph.erase_node(node)


def _put(graph: fx.Graph, like: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Insert a node before ``like`` that stands for a value of its shape."""
    with graph.inserting_before(like):
        node = graph.call_function(target, args, kwargs)
    node.meta = dict(like.meta)
    return node


def _simplify(graph: fx.Graph, node: fx.Node, home: torch.device) -> None:
    """Drop what changes nothing, and call things by one name."""
    target, args = node.target, node.args
    if target is aten.t.default and shape_of(args[0]) and len(shape_of(args[0]) or ()) == 2:
        node.target, node.args = aten.transpose.int, (args[0], 0, 1)
        target, args = node.target, node.args
    source = args[0] if args and isinstance(args[0], fx.Node) else None
    if source is None:
        return
    if _changes_nothing(node, source):
        _swap(graph, node, source)
    elif target in _FILLED:
        made: Made = node.meta["made"]
        filled = _put(
            graph,
            node,
            aten.full.default,
            list(made.shape),
            _FILLED[target],
            dtype=made.dtype,
            device=node.kwargs.get("device") or home,
        )
        _swap(graph, node, filled)
    elif target in _RESHAPED and source.target is aten.full.default:
        shape = list(shape_of(node) or ())
        _swap(graph, node, _put(graph, node, aten.full.default, shape, source.args[1], **source.kwargs))
    elif target is aten.view.default and source.target is aten.view.default:
        node.args = (source.args[0], args[1])
        if shape_of(source.args[0]) == shape_of(node):
            _swap(graph, node, source.args[0])  # type: ignore[arg-type]
    elif target is aten.transpose.int and _undone(node, source):
        _swap(graph, node, source.args[0])  # type: ignore[arg-type]


def _changes_nothing(node: fx.Node, source: fx.Node) -> bool:
    if node.target in _SAME:
        return True
    if node.target in _SCALES:
        return node.args[1:] in ((1,), (1.0,)) and dtype_of(node) == dtype_of(source)
    if shape_of(source) is None or shape_of(node) != shape_of(source):
        return False
    if node.target is TO_COPY:
        return dtype_of(node) == dtype_of(source)
    return node.target in (aten.view.default, aten.expand.default)


def _undone(node: fx.Node, source: fx.Node) -> bool:
    """Tell whether a transposition is taken back by the next."""
    if source.target is not aten.transpose.int:
        return False
    rank = len(shape_of(source) or ())
    first, second = ({int(d) % rank for d in n.args[1:]} for n in (source, node))  # type: ignore[arg-type]
    return first == second


def _fuse(graph: fx.Graph, node: fx.Node) -> None:
    """Join neighbours, and name what has a faster name."""
    if node.target is aten.add.Tensor and not node.kwargs:
        _fuse_bias(graph, node)
    elif node.target is aten.relu.default:
        # The same kernel, but with a form that writes to a given tensor.
        node.target, node.args = aten.clamp_min.default, (node.args[0], 0)
    elif node.target is LOG_SOFTMAX:
        _fuse_softmax(graph, node)
    elif _turns(node):
        _fuse_turn(graph, node)


def _fuse_bias(graph: fx.Graph, node: fx.Node) -> None:
    """Turn a product of matrices and a sum into one call."""
    one, other = node.args
    if not isinstance(one, fx.Node) or not isinstance(other, fx.Node) or one is other:
        return
    if one.target in _WITH_SUM:
        one, other = other, one
    if other.target in _WITH_SUM and len(other.users) == 1 and shape_of(other) == shape_of(node):
        order = {n: i for i, n in enumerate(graph.nodes)}
        if order[one] < order[node]:
            _swap(graph, node, _put(graph, node, _WITH_SUM[other.target], one, *other.args))


def _turns(node: Any) -> bool:
    """Tell whether a node is the transpose of each of a stack of matrices."""
    if not isinstance(node, fx.Node) or node.target is not aten.transpose.int:
        return False
    dims: Any = node.args[1:]
    return len(shape_of(node) or ()) == 3 and {dim % 3 for dim in dims} == {1, 2}


def _fuse_turn(graph: fx.Graph, node: fx.Node) -> None:
    """Turn the factors in place of a product that nothing else reads.

    A layer's gradient then comes in the order of its weights, whose rows are the longer ones as a rule: a
    product writes few long rows faster than many short ones.
    """
    product: Any = node.args[0]
    if product.target is aten.bmm.default and len(product.users) == 1:
        factors = [_turned(graph, node, factor) for factor in reversed(product.args)]
        _swap(graph, node, _put(graph, node, aten.bmm.default, *factors))


def _turned(graph: fx.Graph, before: fx.Node, factor: Any) -> fx.Node:
    if _turns(factor):
        source: fx.Node = factor.args[0]
        return source
    node = _put(graph, before, aten.transpose.int, factor, 1, 2)
    (stack, rows, columns), dtype = factor.meta["made"]
    node.meta["made"] = Made((stack, columns, rows), dtype)
    return node


_WITH_SUM = {aten.bmm.default: aten.baddbmm.default, aten.mm.default: aten.addmm.default}


def _fuse_softmax(graph: fx.Graph, node: fx.Node) -> None:
    """Write the gradient of a log-softmax whose value is not read with the softmax itself.

    The gradient of -log softmax is the softmax times the sum of what comes from above, less that; both terms
    of what comes from above depend on labels only. The softmax is spelled out, since torch's own goes through
    short rows one by one.
    """
    backward = [user for user in node.users if user.target is LOG_SOFTMAX_BACKWARD]
    if not backward or len(backward) < len(node.users):
        return
    x, dim, _ = node.args
    low = _put(graph, node, aten.sub.Tensor, x, _put(graph, node, aten.amax.default, x, [dim], True))
    powers = _put(graph, node, aten.exp.default, low)
    total = _put(graph, node, aten.sum.dim_IntList, powers, [dim], True)
    for user in backward:
        above = user.args[0]
        sums = _put(graph, user, aten.sum.dim_IntList, above, [dim], True)
        share = _put(graph, user, aten.div.Tensor, sums, total)
        _swap(graph, user, _put(graph, user, aten.addcmul.default, above, powers, share, value=-1))


class When(IntEnum):
    """How often a value changes."""

    ONCE = 0
    VISIT = 1
    LABELS = 2
    STEP = 3


@dataclass(frozen=True)
class GraphParts:
    """A step in four functions.

    Attributes:
        visit: Maps the visit's inputs to what stays the same in all its steps.
        labels: Maps ``visit``'s outputs and the labels of a step to what does not depend on the model; it
            works under ``vmap`` over steps.
        step: Maps parameters, ``visit``'s outputs, ``labels``' outputs and inputs to gradients.
        logs: Maps the same to what the step logs.
        params, constants, terms: Number of the parameters, of ``visit``'s and of ``labels``' outputs.
    """

    visit: Callable[..., Any]
    labels: Callable[..., Any]
    step: Recording
    logs: Recording
    params: int
    constants: int
    terms: int


def split(traced: Traced) -> GraphParts:
    """Split a tidied graph."""
    graph = traced.graph.graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    params, rest = places[: traced.params], places[traced.params :]
    visit, rest = rest[: traced.visit], rest[traced.visit :]
    labels, x = rest[: traced.labels], rest[traced.labels :]
    when = _ages(graph, visit, labels)
    constants = _crossing(graph, when, When.VISIT)
    terms = [n for n in _crossing(graph, when, When.LABELS) if when[n] is When.LABELS]
    outputs: list[fx.Node] = list(graph.output_node().args[0])  # type: ignore[arg-type]
    own, count = [*params, *constants, *terms, *x], len(traced.names)
    return GraphParts(
        visit=callable_of(_part(traced.graph, visit, constants)),
        labels=callable_of(_part(traced.graph, [*constants, *labels], terms)),
        step=_part(traced.graph, own, outputs[:count]),
        logs=_part(traced.graph, own, outputs[count:]),
        params=len(params),
        constants=len(constants),
        terms=len(terms),
    )


def _ages(graph: fx.Graph, visit: list[fx.Node], labels: list[fx.Node]) -> dict[fx.Node, When]:
    """Tell for every node how often its value changes."""
    when = dict.fromkeys(visit, When.VISIT) | dict.fromkeys(labels, When.LABELS)
    for node in graph.nodes:
        if node.op == "placeholder":
            when.setdefault(node, When.STEP)
        else:
            when[node] = max((when[n] for n in node.all_input_nodes), default=When.ONCE)
    return when


def _crossing(graph: fx.Graph, when: dict[fx.Node, When], level: When) -> list[fx.Node]:
    """List the values up to a level that are read above it; those of ``ONCE`` are recomputed there."""
    return [
        node
        for node in graph.nodes
        if When.ONCE < when[node] <= level and any(when[user] > level for user in node.users)
    ]


def _part(module: Recording, inputs: list[fx.Node], outputs: list[fx.Node]) -> Recording:
    """Cut the part of a graph out that leads from some nodes to others."""
    part = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: part.placeholder(f"in_{i}") for i, node in enumerate(inputs)}
    needed: set[fx.Node] = set()
    open_ = [node for node in outputs if node not in copies]
    while open_:
        node = open_.pop()
        if node not in needed:
            needed.add(node)
            open_ += [n for n in node.all_input_nodes if n not in copies]
    for node in module.graph.nodes:
        if node in needed:
            copies[node] = part.node_copy(node, lambda n: copies[n])
    part.output(tuple(copies[node] for node in outputs))
    return Recording(module, part)
