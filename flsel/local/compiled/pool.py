"""Federations whose clients can train in one stack: their steps compute the same, from other examples."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from flsel.data.population import Population
from flsel.local.optimizers import groups_of
from flsel.local.program import Program
from flsel.local.tasks import averages_examples, convolves
from flsel.local.torch_internals import is_hooked
from flsel.local.visit import Visit
from flsel.objectives.objective import Objective, overrides

# Multiplications and additions of a federation's own step, forward, up to which a wider stack is faster on
# a CPU: above it the arithmetic costs more than the calls (benchmarks/backends.md).
ARITHMETIC = 2_000_000
# Numbers of a model above which a CPU trains two at a time: the states of more do not stay in its cache.
_LARGE = 500_000
# Bytes of inputs that are copied so that several federations can be read as one.
_COPIED = 2**28
_PLAIN = (bool, int, float, str, type(None), torch.dtype, type)

_known: WeakKeyDictionary[Program, Hashable] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Pool:
    """Programs that train together.

    Attributes:
        programs: Programs of one :func:`signature`.
        whole: The first of them, over the examples of all.
        offsets: Where the examples of each program begin in those of all.
    """

    programs: tuple[Program, ...]
    whole: Program
    offsets: dict[Program, int]

    @classmethod
    def of(cls, programs: Sequence[Program]) -> Pool:
        """Pool programs; inputs that lie in the same memory are not copied."""
        if len(programs) == 1:
            return cls(tuple(programs), programs[0], {programs[0]: 0})
        inputs: dict[tuple[int, torch.Size, int], int] = {}
        offsets, parts, end = dict[Program, int](), list[Population](), 0
        for program in programs:
            own = program.population
            key = (own.x.data_ptr(), own.x.shape, own.y.data_ptr())
            if key not in inputs:
                inputs[key] = end
                parts.append(own)
                end += len(own.y)
            offsets[program] = inputs[key]
        whole = programs[0]
        if len(parts) > 1:
            joined = replace(
                whole.population,
                x=torch.cat([part.x for part in parts]),
                y=torch.cat([part.y for part in parts]),
            )
            whole = replace(whole, population=joined)
        return cls(tuple(programs), whole, offsets)

    def batch_table(self, visit: Visit) -> np.ndarray:
        """Return a visit's batches as positions in the examples of all (:meth:`Visit.batch_table`)."""
        table, offset = visit.batch_table(), self.offsets[visit.program]
        return table if offset == 0 else np.where(table >= 0, table + offset, table)


def is_large(program: Program) -> bool:
    """Tell whether the compiled step takes two models at a time at most."""
    task, numbers = program.task, sum(value.numel() for value in program.state().values())
    return numbers > _LARGE and task.device.type == "cpu" and not convolves(task)


def together(programs: Sequence[Program], clients: int) -> bool:
    """Tell whether the clients of several federations train faster in one stack than one after the other.

    Args:
        programs: Programs of one :func:`signature`.
        clients: Clients of the largest of them in a call.
    """
    distinct = {program.population.x.data_ptr(): program.population.x for program in programs}
    if len(distinct) > 1 and sum(x.nbytes for x in distinct.values()) > _COPIED:
        return False
    return pooling_is_faster(programs[0], clients)


def pooling_is_faster(program: Program, clients: int) -> bool:
    """Tell whether a stack of more than ``clients`` clients costs less than two of them."""
    if program.task.device.type != "cpu":
        return True
    if convolves(program.task):
        return False
    numbers = sum(value.numel() for value in program.trainable().values())
    return numbers * program.spec.size * clients <= ARITHMETIC


def signature(program: Program) -> Hashable:
    """Describe what a program computes in a step; equal ones compute the same from equal inputs.

    A program that cannot be described by plain values is like no other.
    """
    if program not in _known:
        try:
            _known[program] = _described(program)
        except _Unlike:
            _known[program] = object()
    return _known[program]


def forget(program: Program) -> None:
    """Drop a program's signature, since something about it was changed."""
    _known.pop(program, None)


class _Unlike(Exception):
    """A program has something that cannot be compared with another's."""


def _described(program: Program) -> Hashable:
    task, data = program.task, program.population
    if not averages_examples(task) or data.why_one_by_one() or not isinstance(data.x, Tensor):
        raise _Unlike
    names = {id(param): name for name, param in task.net.named_parameters()}
    if set(names.values()) != set(program.state()) or len(list(task.buffers())):
        raise _Unlike
    groups = groups_of(program.optimizer, dict(task.net.named_parameters()))
    every = task.net.named_parameters(remove_duplicate=False)
    return (
        tuple((name, names[id(p)], p.shape, p.dtype, p.requires_grad) for name, p in every),
        tuple(_module(name, module) for name, module in task.net.named_modules()),
        (type(program.optimizer), _plain(groups)),
        _objective(program.objective),
        (data.x.shape[1:], data.x.dtype, data.x.device, data.num_classes),
        (str(data.normalize.scale.tolist()), str(data.normalize.shift.tolist())),
        (task.device, type(program.fabric), type(task), task.compute),
        program.spec.size,
    )


def _module(name: str, module: nn.Module) -> Hashable:
    if is_hooked(module):
        raise _Unlike
    public = {key: value for key, value in vars(module).items() if not _torchs(key)}
    return name, type(module), _plain(public)


def _torchs(name: str) -> bool:
    """Tell whether an attribute is the bookkeeping of every module."""
    return name == "training" or (name.startswith("_") and name in vars(nn.Identity()))


def _objective(objective: Objective) -> Hashable:
    # What remembers its clients does so under their numbers, which others have too.
    if overrides(objective, "observe") or overrides(objective, "contrast"):
        raise _Unlike
    return type(objective), _plain(vars(objective))


def _plain(value: Any) -> Hashable:
    """Make plain values hashable, each with its type.

    Raises:
        _Unlike: If there is something else among them.
    """
    if isinstance(value, dict):
        return tuple((key, _plain(value[key])) for key in sorted(value))
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_plain(item) for item in value)
    if isinstance(value, _PLAIN):
        return type(value), value
    raise _Unlike
