"""Record the tensor operations that a function calls as a graph, and check that a replay repeats them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from flsel.local.compiled.refusals import BRANCHES, DRAWS, Refused
from flsel.local.torch_internals import (
    UNSAFE_VIEW,
    OpOverload,
    TorchDispatchMode,
    overload,
    schema,
    tree_leaves,
    tree_map_only,
)

aten = torch.ops.aten
# What returns views without saying so, and what says so.
_VIEWS = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
    UNSAFE_VIEW: aten.view.default,
}


class Made(NamedTuple):
    """Shape and dtype of a node's value; kept as its ``meta["made"]``."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Recording(fx.GraphModule):
    """A graph with its constants, which is read and rewritten; :func:`callable_of` makes it code."""

    def recompile(self) -> None:  # type: ignore[override]
        """Write no code, which takes longer than all else, whenever the graph is set."""


def callable_of(graph: Recording) -> Callable[..., Any]:
    """Return the function that a graph describes."""
    call: Callable[..., Any] = fx.GraphModule(graph, graph.graph).forward
    return call


def record(function: Callable[..., Sequence[Tensor]], *inputs: Tensor) -> Recording:
    """Call a function and return what it computed as a graph of operations below autograd and ``vmap``.

    Args:
        function: Maps tensors to tensors. Other tensors that it reads are constants of the graph.
        inputs: Values of the graph's placeholders.

    Raises:
        Refused: If it branches on data or writes to a tensor that it did not make.
        Exception: Whatever the function raises.
    """
    recorder = _Recorder(inputs)
    with recorder:
        outputs = function(*inputs)
    recorder.graph.output(tuple(recorder.node(value) for value in outputs))
    return Recording(recorder.constants, recorder.graph)


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operation as the last before its kernel."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph, self.constants = fx.Graph(), nn.Module()
        self._nodes: dict[int, fx.Node] = {}
        self._changing: set[fx.Node] = set()
        # An id is a tensor's as long as the tensor lives.
        self._kept: list[Tensor] = []
        for i, value in enumerate(inputs):
            place = self.graph.placeholder(f"in_{i}")
            self._changing.add(place)
            self._is(value, place)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Keeping this out of what torch compiles would import the compiler.
        return False

    def node(self, value: Tensor) -> fx.Node:
        """Return the node of a tensor; one that was not computed here is a constant."""
        if id(value) not in self._nodes:
            name = f"constant_{len(self._kept)}"
            setattr(self.constants, name, value.detach() if isinstance(value, nn.Parameter) else value)
            self._is(value, self.graph.get_attr(name))
        return self._nodes[id(value)]

    def _is(self, value: Tensor, node: fx.Node) -> None:
        self._nodes[id(value)] = node
        self._kept.append(value)
        node.meta["made"] = Made(tuple(value.shape), value.dtype)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        func, kwargs = _VIEWS.get(func, func), kwargs or {}
        named: Any = tree_map_only(Tensor, self.node, (args, kwargs))
        changes = any(node in self._changing for node in tree_leaves(named) if isinstance(node, fx.Node))
        if changes and _reads_data(func, args):
            raise Refused(BRANCHES)
        if any(root(node, parts=True).op != "call_function" for node in written_nodes(func, *named)):
            raise Refused("it writes to a buffer (a callback may, between rounds)")
        value = func(*args, **kwargs)
        if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
            return value
        node = self.graph.call_function(func, *named)
        if changes:
            self._changing.add(node)
        self._found(value, node, changes)
        return value

    def _found(self, value: Any, node: fx.Node, changes: bool) -> None:
        """Remember which node stands for a result, or for each of several."""
        if isinstance(value, Tensor):
            self._is(value, node)
            return
        for i, part in enumerate(value):
            if isinstance(part, (Tensor, tuple, list)):
                taken = self.graph.call_function(operator.getitem, (node, i))
                if changes:
                    self._changing.add(taken)
                self._found(part, taken, changes)


def _reads_data(func: Any, args: Sequence[Any]) -> bool:
    """Tell whether numbers decide what an operation returns: a number, or how large a tensor."""
    if func is aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


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
        written_nodes(target, node.args, dict(node.kwargs)) != [changed]
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


def written_nodes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[fx.Node]:
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
    """Return the node whose memory a view reads.

    Args:
        node: The view, or any other node.
        parts: Each result of an operation with several results counts as memory of its own.
    """
    while is_view(node) and isinstance(node.args[0], fx.Node):
        if parts and not _shares(node):
            break
        node = node.args[0]
    return node
