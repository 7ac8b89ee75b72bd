"""Record the tensor operations that a function calls as a graph.

``make_fx`` does the same and more, but it patches torch for all threads, and what it and ``torch.func.grad``
import takes longer than a small run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from flsel.local.compiled.refusals import BRANCHES, Refused
from flsel.local.compiled.refuse import root, written
from flsel.local.torch_internals import UNSAFE_VIEW, TorchDispatchMode, tree_leaves, tree_map_only

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


def record(function: Callable[..., Sequence[Tensor]], *inputs: Tensor) -> fx.GraphModule:
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
    return fx.GraphModule(recorder.constants, recorder.graph)


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
        if any(root(node, parts=True).op != "call_function" for node in written(func, *named)):
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
