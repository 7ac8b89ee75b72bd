"""Bind a graph to buffers that are allocated once and written again in each step, and run such steps.

What changes from step to step is passed by the caller, or read from tables on the device.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, fx

from flsel.local.compiled.record_graph import Recording, callable_of, is_view
from flsel.local.torch_internals import TO_COPY, OpOverload, has_kernel, schema

_LOG = logging.getLogger("flsel")
# Steps that are taken before the recording, which must find every kernel and library loaded.
_WARM = 3

Gather = Callable[[Tensor], object]
Run = Callable[..., object]
aten = torch.ops.aten

# Python's own bindings are called faster than operator objects.
_FAST = (
    "bmm", "mm", "baddbmm", "addmm", "add", "sub", "mul", "div", "exp", "log", "tanh", "sigmoid", "neg",
    "amax", "sum", "clamp_min", "gather", "where", "sqrt", "rsqrt", "maximum", "minimum", "mean", "addcmul",
    "eq", "unsqueeze",
)  # fmt: skip
_COPIES = (aten.clone.default, TO_COPY)


def called(module: Recording) -> Callable[..., Any]:
    """Return a graph as a function that calls operations by their fastest names."""
    for node in module.graph.nodes:
        short = node.target.overloadpacket.__name__ if isinstance(node.target, OpOverload) else ""
        if short in _FAST and not node.kwargs:
            node.target = getattr(torch, short)
    return callable_of(module)


class FlatCode:
    """A graph on its way to code that is called with the same buffers in every step.

    A value is *fixed* if it lies at the same address in every step: what is given, buffers, and views of
    both; operations that can write to a given tensor make fixed values. The others *move*: they are
    allocated by their operation and live until they were read last.

    Args:
        module: The graph; its outputs are gradients.
        inputs: Tensor of each placeholder; of the moving ones it is an example.
        moving: Placeholders that are given anew at every step.
    """

    def __init__(self, module: Recording, inputs: list[Tensor], moving: range) -> None:
        self.code = fx.Graph()
        self.values: dict[fx.Node, Any] = {}  # the value itself if fixed, else an example
        self._given: list[Tensor] = []
        self._places: dict[tuple[Any, ...], fx.Node] = {}
        self._moving: dict[fx.Node, fx.Node] = {}  # where the code holds a moving value
        self._last = _last_uses(module.graph)
        self._storages = _Storages()
        self._module = module
        places = [node for node in module.graph.nodes if node.op == "placeholder"]
        for i, (node, value) in enumerate(zip(places, inputs, strict=True)):
            self.values[node] = value
            if i in moving:
                self._moving[node] = self.code.placeholder(f"moving_{i}")
        self._order = {node: i for i, node in enumerate(module.graph.nodes)}

    def emit(self) -> list[fx.Node]:
        """Write the code of the whole graph; return the nodes of its outputs."""
        with torch.no_grad():
            for node in self._module.graph.nodes:
                if node.op == "get_attr":
                    self.values[node] = getattr(self._module, node.target)
                elif node.op == "call_function":
                    self._call(node)
                self._storages.release(self._order[node])
        return list(self._module.graph.output_node().args[0])  # type: ignore[arg-type]

    def argument(self, node: Any) -> Any:
        """Return how the code names a value of the graph, or a list of such."""
        return fx.node.map_arg(node, self._name)

    def given(self, value: Tensor) -> fx.Node:
        """Return the code's name of a tensor that it is given once and for all."""
        key = (
            value.data_ptr(),
            value.dtype,
            tuple(value.shape),
            value.stride(),
            value.is_conj(),
            value.is_neg(),
            id(value) if not value.numel() else 0,
        )
        if key not in self._places:
            self._places[key] = self.code.placeholder(f"given_{len(self._given)}")
            self._given.append(value)
        return self._places[key]

    def finish(self, outputs: list[Any], numbers: list[str]) -> Callable[..., Any]:
        """Return the code as a function of ``numbers``, then of the moving inputs.

        ``numbers`` name placeholders made by :meth:`number`.
        """
        self.code.output(tuple(outputs))
        places = {node.name: node for node in self.code.nodes if node.op == "placeholder"}
        moving = [node.name for node in self._moving.values() if node.op == "placeholder"]
        order = [*(node.name for node in self._places.values()), *numbers, *moving]
        anchor = next(node for node in self.code.nodes if node.op != "placeholder")
        for name in order:
            anchor.prepend(places[name])
        # Never without dead code: fx does not see that a call writes to its ``out``.
        return partial(fx.GraphModule({}, self.code).forward, *self._given)

    def number(self, name: str) -> fx.Node:
        """Add a placeholder for a number."""
        return self.code.placeholder(name)

    def _name(self, node: fx.Node) -> fx.Node:
        return self._moving[node] if node in self._moving else self.given(self.values[node])

    def _call(self, node: fx.Node) -> None:
        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: self.values[n])
        value = node.target(*args, **kwargs)  # type: ignore[operator]
        moves = any(n in self._moving for n in node.all_input_nodes)
        self.values[node] = value
        if not node.all_input_nodes or (is_view(node) and not moves):
            return
        if is_view(node) or not isinstance(value, Tensor):
            given = self.argument((node.args, dict(node.kwargs)))
            self._moving[node] = self.code.call_function(node.target, *given)  # type: ignore[arg-type]
            return
        self._write(node, value)

    def _write(self, node: fx.Node, value: Tensor) -> None:
        """Emit an operation with a buffer to write to, or as it is where it takes none."""
        args, kwargs = self.argument((node.args, dict(node.kwargs)))
        form = _out_form(node.target, value.device)
        if node.target not in _COPIES and form is None:
            self._moving[node] = self.code.call_function(node.target, args, kwargs)  # type: ignore[arg-type]
            return
        buffer = self._storages.take(value, self._last[node])
        self.values[node] = buffer.copy_(value)
        out = self.given(buffer)
        if form is None:
            self.code.call_method("copy_", (out, args[0]))
            return
        function, name = form
        self.code.call_function(function, args, {**kwargs, name: out})


def _last_uses(graph: fx.Graph) -> dict[fx.Node, int]:
    """Return the position at which a value's memory is read last, through views too."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    base: dict[fx.Node, fx.Node] = {}
    last: dict[fx.Node, int] = {}
    for node in graph.nodes:
        first = node.args[0] if node.args else None
        base[node] = base[first] if is_view(node) and isinstance(first, fx.Node) else node
        for source in node.all_input_nodes:
            last[base[source]] = order[node]
    # What is returned is read after the graph.
    for node in graph.output_node().all_input_nodes:
        last[base[node]] = len(order) + 1
    return {node: last.get(base[node], order[node]) for node in graph.nodes}


class _Storages:
    """Memory for buffers, used again once its last reader has run."""

    def __init__(self) -> None:
        self._free: list[torch.UntypedStorage] = []
        self._taken: list[tuple[int, torch.UntypedStorage]] = []

    def take(self, like: Tensor, until: int) -> Tensor:
        """Return a tensor of the same shape, strides and dtype; its memory is free after ``until``."""
        strides = like.stride()
        extent = 1 + sum((n - 1) * s for n, s in zip(like.shape, strides, strict=True)) if like.numel() else 0
        need = max(extent * like.element_size(), 64)
        fits = [s for s in self._free if need <= s.nbytes() <= 4 * need + 4096]
        storage = min(fits, key=lambda s: s.nbytes(), default=None)
        if storage is None:
            storage = torch.empty(need, dtype=torch.uint8, device=like.device).untyped_storage()
        else:
            self._free = [s for s in self._free if s is not storage]
        self._taken.append((until, storage))
        return torch.empty(0, dtype=like.dtype, device=like.device).set_(storage, 0, like.shape, strides)

    def release(self, now: int) -> None:
        """Free the memory of what no later operation reads."""
        self._free += [storage for until, storage in self._taken if until <= now]
        self._taken = [(until, storage) for until, storage in self._taken if until > now]


def _out_form(target: Any, device: torch.device) -> tuple[Callable[..., Any], str] | None:
    """Find the form of an operation that writes to a given tensor, and the name of that argument."""
    if target is operator.getitem or not isinstance(target, OpOverload):
        return None
    own = [(a.name, str(a.type)) for a in schema(target).arguments]
    packet = target.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        outs = [a.name for a in schema(other).arguments if a.is_out]
        rest = [(a.name, str(a.type)) for a in schema(other).arguments if not a.is_out]
        # Without a kernel of its own the form is the plain operation and a copy.
        if len(outs) == 1 and rest == own and has_kernel(other, device.type):
            short = packet.__name__
            fast = getattr(torch, short) if short in _FAST and outs == ["out"] else other
            return fast, outs[0]
    return None


class HostRunner:
    """Runs steps, and passes each of them the values that it reads, which is the least work on a CPU.

    Args:
        gather: Brings the inputs at given positions to where the step reads them.
        run: Takes one step.
    """

    def __init__(self, gather: Gather, run: Run) -> None:
        self._gather, self._run = gather, run
        self._next: Iterator[tuple[list[float], Tensor, tuple[Tensor, ...]]]

    def load(self, numbers: list[list[float]], places: Tensor, terms: list[Tensor]) -> None:
        """Prepare the next S steps.

        Args:
            numbers: Factors of the optimizer in each step.
            places: Positions of the steps' examples, int64 ``[S, n * size]``.
            terms: Values that do not depend on the parameters, each ``[S, ...]``.
        """
        rows = zip(*(term.unbind(0) for term in terms), strict=True) if terms else iter([()] * len(numbers))
        self._next = zip(numbers, places.unbind(0), rows, strict=True)

    def advance(self, count: int) -> None:
        """Take the next steps."""
        gather, run = self._gather, self._run
        for numbers, place, terms in islice(self._next, count):
            gather(place)
            run(*numbers, *terms)

    def step(self, before: Run) -> None:
        """Take the next step, and before it call something with what does not depend on the parameters."""
        numbers, place, terms = next(self._next)
        self._gather(place)
        before(*terms)
        self._run(*numbers, *terms)


class TableRunner:
    """Lets every step read its rows of tables on the device; a counter there has the number of the row.

    No step asks the host for anything, nor depends on where the host stands: on a GPU the work of one is
    recorded as a CUDA graph and replayed. Elsewhere the same work is done call by call.

    Args:
        gather: As for :class:`HostRunner`.
        run: Takes one step; it reads ``numbers`` and the terms in fixed memory.
        numbers: Where the step reads what the optimizer multiplies with, ``[k]``.
        terms: Where it reads what does not depend on the models.
        record: Record the work of a step; only on a GPU, and only if it does nothing but launch kernels.
    """

    def __init__(self, gather: Gather, run: Run, numbers: Tensor, terms: list[Tensor], record: bool) -> None:
        self._gather, self._run = gather, run
        self._numbers, self._terms = numbers, terms
        self._counter = torch.zeros(1, dtype=torch.int64, device=numbers.device)
        self._tables: list[Tensor] = []
        self._record, self._warm = record, 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def load(self, numbers: list[list[float]], places: Tensor, terms: list[Tensor]) -> None:
        """Prepare the next S steps (see :class:`HostRunner`)."""
        factors = torch.tensor(numbers, dtype=self._numbers.dtype).to(self._numbers.device)
        tables = [factors, places, *terms]
        if not self._tables or len(self._tables[0]) < len(numbers):
            self._tables = [torch.empty_like(table) for table in tables]
            self._place = places.new_empty((1, *places.shape[1:]))
            self._graph, self._warm = None, 0
        for mine, table in zip(self._tables, tables, strict=True):
            mine[: len(table)].copy_(table)
        self._counter.zero_()

    def advance(self, count: int) -> None:
        """Take the next steps."""
        for _ in range(count):
            if self._record and self._graph is None and self._warm >= _WARM:
                self._graph = self._recorded()
            if self._graph is None:
                self._aside()
            else:
                self._graph.replay()

    def _step(self) -> None:
        read = [self._numbers[None], self._place, *(term[None] for term in self._terms)]
        for table, row in zip(self._tables, read, strict=True):
            torch.index_select(table, 0, self._counter, out=row)
        self._gather(self._place[0])
        self._run()
        self._counter.add_(1)

    def _aside(self) -> None:
        """Take a step call by call; before a recording on a stream of its own, as CUDA asks for."""
        if not self._record:
            self._step()
            return
        self._warm += 1
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.current_stream().wait_stream(stream)

    def _recorded(self) -> torch.cuda.CUDAGraph | None:
        """Record a step, which does not take it; None if that is not possible."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._step()
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            _LOG.warning("local.backend compiled: a step is not recorded as a CUDA graph (%s)", said)
            self._record = False
            return None
        return graph
