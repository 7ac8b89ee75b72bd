"""Trace the gradient of a client's step, once per shape, into a graph of tensor operations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from flsel.data.trees import Tree, rebuilt, tensors
from flsel.local.compiled.record_graph import Recording, check_graph, record
from flsel.local.compiled.refusals import Refused, Unread, out_of_place, watched
from flsel.local.compiled.step_logs import LogKind, StepLog
from flsel.local.dropout import Masks
from flsel.local.lightning_internals import heard_by
from flsel.local.lightning_module import call_step
from flsel.local.program import Program
from flsel.local.snapshot import undisturbed
from flsel.local.tasks import loss_of
from flsel.local.torch_internals import CONVOLVE, beneath_vmap, tree_flatten, tree_leaves, tree_unflatten
from flsel.objectives.objective import Objective, overrides
from flsel.params import Params


@dataclass(frozen=True)
class Example:
    """What a step is traced with; the numbers do not matter, shapes and dtypes do.

    Attributes:
        params: Parameters of a stack of models, ``[n, ...]``, or of one model without a leading dimension.
        starts: Models that the clients started from, ``[n, ...]``; n = 1 for one model.
        clients: Ids, int64 ``[n]``.
        models: Frozen models of the objective's contrast, each ``[n, ...]``.
        x: Inputs ``[n, B, ...]``, or ``[B, ...]`` for one model; trees of such tensors.
        y: Targets, likewise.
        keys: Of the step's dropout masks, int64 ``[n]``, or ``[]`` for one model.
        weights: Weight of each example in its batch's mean, likewise; None: the task takes its own mean.
        drawn: What the step draws for generated features, by name, likewise; may be empty.
    """

    params: Params
    starts: Params
    clients: Tensor
    models: tuple[Params, ...]
    x: Tree
    y: Tree
    keys: Tensor
    weights: Tensor | None
    drawn: Params

    @property
    def stacked(self) -> bool:
        """Whether the parameters have a leading dimension."""
        name = next(iter(self.params))
        return self.params[name].ndim == self.starts[name].ndim


@dataclass(frozen=True)
class Traced:
    """A graph that maps flat inputs to the gradients of ``names``, and which input is what.

    Attributes:
        graph: Its placeholders are, in order, the parameters, what is the same in every step of a visit, the
            labels, keys (and weights), what the step draws, and the inputs.
        names: Parameters that the loss depends on, in the order of the graph's outputs.
        params, visit, labels: Number of placeholders of each kind; the others are the inputs.
        inputs: The example's tensors in the order of the placeholders.
        drops: Whether the loss depends on the keys.
        convolves: Whether it has convolutions.
        kinds: How the step logs the values that come behind the gradients.
    """

    graph: Recording
    names: list[str]
    params: int
    visit: int
    labels: int
    inputs: list[Tensor]
    drops: bool
    convolves: bool
    kinds: list[LogKind]


def state_leaves(objective: Objective) -> tuple[list[Any], Any]:
    """Flatten everything an objective keeps; returns the leaves and how to put them together again."""
    leaves, spec = tree_flatten(vars(objective))
    return leaves, spec


def kept_by(objective: Objective) -> tuple[Any, ...]:
    """Describe what a trace takes for granted: the shapes of an objective's tensors, and all else."""
    if not any(overrides(objective, hook) for hook in ("correct", "contrast", "generated")):
        return ()
    leaves, _ = state_leaves(objective)
    return tuple((x.shape, x.dtype) if isinstance(x, Tensor) else repr(x) for x in leaves)


def _reads_state(objective: Objective) -> bool:
    """Tell whether a step computes with what an objective keeps."""
    return overrides(objective, "correct") or overrides(objective, "generated")


def inputs_of(program: Program, example: Example) -> tuple[Params, Any, Any, list[Tensor]]:
    """Return an example's tensors in trees, by how often they change: the order of the graph's inputs.

    Returns:
        The parameters; what stays the same in every step of a visit; the labels and keys (and weights), with
        what the step draws; the inputs.
    """
    kept, starts, clients = list[Tensor](), Params(), list[Tensor]()
    if _reads_state(program.objective):
        leaves, _ = state_leaves(program.objective)
        kept = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        starts, clients = example.starts, [example.clients]
    weights = [] if example.weights is None else [example.weights]
    labels = tensors(example.y), example.keys, weights, example.drawn
    return example.params, (example.models, kept, starts, clients), labels, tensors(example.x)


def visit_inputs(program: Program, example: Example) -> list[Tensor]:
    """List the tensors that stay the same in every step of a visit."""
    leaves: list[Tensor] = tree_leaves(inputs_of(program, example)[1])
    return leaves


def trace(program: Program, example: Example) -> Traced:
    """Trace the corrected gradient of a client's loss.

    Raises:
        Refused: If the step does more than compute a loss: reads ``batch_idx``, prints, draws random numbers,
            keeps something in the module, or writes to a buffer.
        Exception: Whatever the step raises under :func:`torch.func.vmap`, for instance where it branches on
            data.
    """
    step, groups = _Flat(program, example), inputs_of(program, example)
    params, visit, labels, _ = (len(tree_leaves(group)) for group in groups)
    inputs = tree_leaves(groups)
    _import_all()
    with undisturbed(program.task), watched(program.kept), out_of_place(program.task):
        graph = record(step, *inputs)
    graph.graph.eliminate_dead_code()
    check_graph(graph.graph)
    graph.graph.eliminate_dead_code()
    at = params + visit + len(tensors(example.y))
    (keys,) = (node for node in graph.graph.nodes if node.name == f"in_{at}")
    convolves = any(node.target is CONVOLVE for node in graph.graph.nodes)
    drops = bool(keys.users)
    return Traced(graph, step.names, params, visit, labels, inputs, drops, convolves, step.kinds)


@cache
def _import_all() -> None:
    """Have ``vmap`` import what it needs: operations that an import runs would be recorded."""
    vmap(torch.neg)(torch.zeros(1))


class _Flat:
    """The step as a function of flat tensors.

    Attributes:
        names: Parameters that the loss depends on, once it was called: an optimizer leaves the others alone.
        kinds: How it logs values, once it was called.
    """

    def __init__(self, program: Program, example: Example) -> None:
        self._program, self._example = program, example
        _, self._spec = tree_flatten(inputs_of(program, example))
        self.names: list[str] = []
        self.kinds: list[LogKind] = []

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        params, visit, labels, x = tree_unflatten(list(inputs), self._spec)
        models, kept, starts, clients = visit
        program = self._program
        if _reads_state(program.objective):
            leaves, spec = state_leaves(program.objective)
            leaves = [kept.pop(0) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            objective = copy.copy(program.objective)
            vars(objective).update(tree_unflatten(leaves, spec))
            program = replace(program, objective=objective)
        loss = client_loss(program, self._example, self.kinds)
        grads, logged = _gradients(loss, self._example, params, (models, labels, x))
        self.names = list(grads)
        if overrides(program.objective, "correct"):
            return *_corrected(program.objective, grads, params, starts, *clients), *logged
        return *grads.values(), *logged


def _corrected(
    objective: Objective, grads: Params, params: Params, starts: Params, clients: Tensor
) -> tuple[Tensor, ...]:
    """Let the objective correct gradients; a single model is passed as a stack of one."""
    single = any(params[name].ndim < starts[name].ndim for name in grads)
    if single:
        grads, params = ({n: value[None] for n, value in group.items()} for group in (grads, params))
    kept = kept_by(objective)
    grads = objective.corrected(grads, params, starts, clients)
    if kept_by(objective) != kept:
        raise Refused("its objective keeps something (let its observe do so)")
    return tuple(grad[0] if single else grad for grad in grads.values())


def _gradients(
    loss: Callable[..., tuple[Tensor, tuple[Tensor, ...]]],
    example: Example,
    params: Params,
    beside: tuple[tuple[Params, ...], Any, list[Tensor]],
) -> tuple[Params, tuple[Tensor, ...]]:
    """Return the gradients of the parameters that the loss depends on, and what the step logs.

    Raises:
        Refused: If it depends on none.
    """
    models, labels, x = beside
    live = {name: value.detach() for name, value in params.items()}
    for param in live.values():
        param.requires_grad_()
    with torch.enable_grad():
        if example.stacked:
            # The rows do not meet, so that the gradient of the sum is every row's own.
            # Attention is written out: vmap would call its kernels for one model at a time.
            with sdpa_kernel(SDPBackend.MATH):
                losses, logged = vmap(loss)(live, models, labels, x)
                total = losses.sum()
        else:
            single = tuple({name: value[0] for name, value in model.items()} for model in models)
            total, logged = loss(live, single, labels, x)
    grads = torch.autograd.grad(total, list(live.values()), allow_unused=True)
    used = {name: grad for name, grad in zip(live, grads, strict=True) if grad is not None}
    if not used:
        raise Refused("its loss reaches no parameter by its name (keep them in an nn.ParameterList)")
    return used, logged


def client_loss(
    program: Program, example: Example, kinds: list[LogKind]
) -> Callable[..., tuple[Tensor, tuple[Tensor, ...]]]:
    """Return the loss of one client's batch, and what the step logs, as a function.

    Its arguments are parameters, frozen models, labels and inputs, the latter two as of :func:`inputs_of`.

    Args:
        program: The client's side.
        example: What the step is traced with.
        kinds: Gets how each value is logged.
    """
    step = program.as_function(_Step(program))

    def loss(
        params: Params, models: tuple[Params, ...], labels: Any, inputs: list[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        targets, key, weights, drawn = labels
        x, y = rebuilt(example.x, inputs), rebuilt(example.y, targets)
        log = StepLog() if program.logs else None
        with Masks(key), _Queries(), heard_by(log):
            value = program.loss(lambda: step(params, x, y, *weights), (x, y), models, drawn, *weights)
        kinds[:] = [] if log is None else log.kinds
        return value, () if log is None else tuple(log.values)

    return loss


_REQUIRES: Any = Tensor.requires_grad.__get__  # type: ignore[attr-defined]
# What hands a tensor's numbers to Python, or its memory to another library.
_LEAVING: tuple[Any, ...] = (
    Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__deepcopy__, Tensor.__reduce_ex__,
    Tensor.__dlpack__, Tensor.__repr__, Tensor.__format__, Tensor.data_ptr, Tensor.untyped_storage,
    Tensor.storage,
)  # fmt: skip


class _Queries(TorchFunctionMode):
    """Answers what a step asks of tensors while it is recorded.

    Under ``torch.func.vmap`` no tensor says that it requires a gradient: a penalty on all parameters that do
    would be none. Numbers that leave torch would be the recorded batch's for ever. The self-check misses that
    where they seldom matter: ``RareRidge`` and ``RareNumpyBranch`` in tests/local/test_rare_steps.py.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == _REQUIRES:
            return func(*args) or func(beneath_vmap(args[0]))
        if func in _LEAVING:
            raise Refused(
                "numbers leave torch in it, by numpy() or tolist() for example (compute with tensors)"
            )
        return func(*args, **(kwargs or {}))


class _Step(nn.Module):
    """Give the training step the name ``forward``, which is what ``functional_call`` calls."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.task = program.task
        self._as_given = program.as_given

    def forward(self, x: Tree, y: Tree, weights: Tensor | None = None) -> Tensor:
        if weights is None:
            return loss_of(call_step(self.task, self._as_given((x, y)), Unread()))
        # The weighted cross-entropy; its factors depend on labels only, so that they are computed for all
        # steps of a visit at once.
        scores = nn.functional.log_softmax(self.task(x), dim=1)
        own = y[:, None] == torch.arange(scores.shape[1], device=y.device)
        loss: Tensor = (scores * (own * -weights[:, None])).sum()
        return loss
