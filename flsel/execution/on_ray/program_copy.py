"""A client's program as another process gets it: the module, its optimizer and all else that trains."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from flsel.data.population import Population
from flsel.data.trees import Tree, rebuilt, tensors
from flsel.errors import UserError, raised_at, short
from flsel.execution.on_ray.shared_tensors import Array, as_array, as_tensor
from flsel.local.lightning_module import without_trainer
from flsel.local.program import Program
from flsel.local.tasks import is_lightning
from flsel.local.torch_internals import Hooks, add_hooks, gradients_are_hooked, hooks_of

# Made anew, or of the process that asks.
_OWN = ("population", "memory", "kept")


@dataclass(frozen=True)
class Copy:
    """A program to be sent, as it is now.

    Attributes:
        arrays: Inputs, targets and groups of all clients.
        shards: Positions of all clients' examples, one client after the other.
        sizes: How many each has.
        rest: The pickle of everything else.
    """

    arrays: list[Array]
    shards: np.ndarray
    sizes: list[int]
    rest: bytes


def size_of(population: Population) -> int:
    """Return the bytes of a population's arrays."""
    return sum(part.nbytes for part in (*tensors(_tree(population)), *population.shards))


def _tree(population: Population) -> Tree:
    return population.x, population.y, population.groups


def copied(program: Program) -> Copy:
    """Copy a program for another process; classes of notebooks and scripts are sent along.

    Raises:
        UserError: If part of it cannot be sent.
    """
    people = program.population
    rest = {f.name: getattr(program, f.name) for f in fields(program) if f.name not in _OWN}
    empty = people.examples.changed(lambda values: values[:0].clone())
    rest["population"] = replace(people, **vars(empty), shards=(), true_models=None)
    buffer = io.BytesIO()
    try:
        # By torch, whose tensors share memory afterwards if they did before.
        torch.save(rest, buffer, pickle_module=_pickling(program.fabric.loggers), pickle_protocol=5)
    except Exception as error:  # whatever the user's objects raise
        raise UserError(
            f"local.workers must be 1 with model {type(program.model).__name__}, which cannot be sent to "
            f"another process: {type(error).__name__}: {short(error).rstrip('.')}."
        ) from error
    shards = torch.cat(people.shards).cpu().numpy()
    arrays = [as_array(part) for part in tensors(_tree(people))]
    return Copy(arrays, shards, people.sizes.tolist(), buffer.getvalue())


def made_of(copy: Copy) -> Program:
    """Make the program again.

    Raises:
        UserError: If it cannot be made here.
    """
    try:
        rest: dict[str, Any] = torch.load(io.BytesIO(copy.rest), weights_only=False)
    except Exception as error:
        raise UserError(
            f"local.workers must be 1: a worker cannot load the model ({raised_at(error)}). Modules of your "
            "own must be importable in each worker."
        ) from error
    if is_lightning(rest["task"]):
        without_trainer(rest["task"])
    device = rest["task"].device
    people = rest.pop("population")
    shards = torch.split(torch.from_numpy(copy.shards.copy()), copy.sizes)
    x, y, groups = rebuilt(_tree(people), [as_tensor(part).to(device) for part in copy.arrays])
    return Program(population=replace(people, x=x, y=y, groups=groups, shards=shards), **rest)


def _pickling(loggers: Sequence[Any]) -> Any:
    """Make the module that torch pickles with: it keeps what training needs, and drops trackers."""
    from ray import cloudpickle

    dropped = {id(logger) for logger in loggers}

    base: Any = cloudpickle.Pickler

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, made: Any) -> Any:
            if id(made) in dropped:
                return _nothing, ()
            if isinstance(made, Optimizer):
                # Its own pickle leaves hooks of steps out, and attributes of the user's.
                return object.__new__, (type(made),), vars(made), None, None, Optimizer.__setstate__
            if isinstance(made, Tensor) and gradients_are_hooked(made):
                make, arguments = made.__reduce_ex__(5)[:2]  # type: ignore[no-untyped-call]
                # As a state, since a hook may hold its own tensor.
                return make, arguments, hooks_of(made), None, None, _hook
            return super().reducer_override(made)

    return type("cloudpickle", (), {"Pickler": Pickler, "Unpickler": pickle.Unpickler})


def _hook(tensor: Tensor, hooks: Hooks) -> None:
    add_hooks(tensor, hooks)


def _nothing() -> None:
    return None
