"""Local training one client at a time, with Lightning Fabric: works with any LightningModule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer

from flsel.data.read_later import Later
from flsel.data.trees import Tree
from flsel.errors import UserError
from flsel.local import measure
from flsel.local.agreement import Agreement
from flsel.local.dropout import Masks, step_keys, visit_key
from flsel.local.lightning_internals import client_log
from flsel.local.optimizers import bare_clear, bare_step
from flsel.local.program import Program, note_constants
from flsel.local.schedule import scale_lr
from flsel.local.snapshot import equal
from flsel.local.tasks import is_lightning
from flsel.local.trainer import LocalTrainer
from flsel.local.visit import Visit, empty_ends, put_end
from flsel.objectives import FedAvg
from flsel.objectives.objective import overrides
from flsel.params import Params
from flsel.rng import repeatable, seed_layers, torch_seed

# Steps of one client that show which buffers are constant.
_FIRST = 3


@dataclass(frozen=True)
class VisitBatches:
    """Some batches of a visit in turn: gathered from memory or read by the dataset, and augmented.

    Iterating gives inputs and targets as :meth:`Program.batch`.

    Attributes:
        program: The client's side.
        table: Positions of all batches, int64 ``[steps, size]``, -1 padded.
        client: Client id.
        draw: What the randomness depends on besides seed, client and step (:attr:`Visit.draw`).
        first: Number of the first step.
        stop: Number of the step behind the last; None takes all.
    """

    program: Program
    table: Tensor
    client: int
    draw: int
    first: int = 0
    stop: int | None = None

    def __len__(self) -> int:
        return len(self.table[self.first : self.stop])

    def __iter__(self) -> Iterator[tuple[Tree, Tree]]:
        program, data = self.program, self.program.population
        table = self.table[self.first : self.stop]
        rows = [row[:length] for row, length in zip(table, (table >= 0).sum(dim=1).tolist(), strict=True)]
        if data.augment is None and not isinstance(data.x, Later):
            yield from map(partial(program.batch, fed=True), rows)
            return
        steps = range(self.first, self.first + len(rows))
        seeds = [torch_seed(program.seed, "augment", self.draw, self.client, step) for step in steps]
        if isinstance(data.x, Later):
            for raw, seed in zip(data.x.batches(rows, seeds), seeds, strict=True):
                yield program.ready(raw, seed, fed=True)
            return
        for row, seed in zip(rows, seeds, strict=True):
            yield program.batch(row, seed, fed=True)


@final
class SequentialTrainer(LocalTrainer):
    """Train clients in turn, each with a fresh optimizer state or with what its last visit left."""

    def __init__(self) -> None:
        self._loops: WeakKeyDictionary[Program, _Loop] = WeakKeyDictionary()

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`)."""
        ends = empty_ends(visits)
        devices = {visit.program.task.device for visit in visits}
        program = None
        # Each visit has a seed of its own.
        with repeatable(0, [device for device in devices if device.type == "cuda"]):
            for row, visit in enumerate(visits):
                if visit.program is not program:
                    program = visit.program
                    loop = self._loop(program)
                put_end(ends, row, loop.live, loop.visit(visit))
        return ends

    def one_by_one(self, program: Program) -> bool:
        """Return True (see :class:`flsel.local.trainer.LocalTrainer`)."""
        return True

    def logs(self, visit: Visit) -> dict[str, float]:
        """Train a client, and return what it logs."""
        return self._loop(visit.program).visit(visit)

    def losses(self, visits: Sequence[Visit]) -> Tensor:
        """Return the clients' losses, one client at a time, so that none depends on the other clients."""
        return measure.losses(visits, plain=True)

    def gradients(self, visits: Sequence[Visit]) -> Params:
        """Return the clients' gradients, one client at a time."""
        return measure.gradients(visits, plain=True)

    def forget(self, program: Program) -> None:
        """Drop what was made of a program (see :class:`flsel.local.trainer.LocalTrainer`)."""
        self._loops.pop(program, None)

    def _loop(self, program: Program) -> _Loop:
        if program not in self._loops:
            self._loops[program] = _Loop(program)
        return self._loops[program]


class _Loop:
    """The local steps of one program's clients, on the task's own parameters.

    Which tensors these are is looked up once, since each visit ends by putting back what a step replaced.

    Attributes:
        live: The tensors that are sent (:meth:`Program.state`).
    """

    def __init__(self, program: Program) -> None:
        self.live, self._params = program.state(), program.trainable()
        self._every = list(program.task.parameters())
        self._corrects = overrides(program.objective, "correct")
        optimizer = program.optimizer
        wrapped = program.fabric.setup_optimizers(optimizer)
        assert not isinstance(wrapped, tuple)
        # Fabric's own wrapper does what a precision or a device asks for.
        bare = bare_step(optimizer) if wrapped is optimizer else None
        self._step: Callable[..., object] = bare or wrapped.step
        # A Trainer gives optimizers a closure. Torch's own do the same with one as after its call.
        takes = "closure" in inspect.signature(optimizer.step).parameters
        self._closes = bare is None and takes and is_lightning(program.model)
        self._clear = bare_clear(optimizer)
        self._optimizer = type(optimizer).__name__
        # What configure_optimizers chose; restored at every visit, as an optimizer may write to it.
        self._groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        # Some optimizers make their state at once: Adagrad of older releases of torch.
        self._state = {param: _copy(state) for param, state in optimizer.state.items()}
        self._own = program.kept.of_optimizer(optimizer)  # one of one's own may count in itself
        # Whether the last step called a dropout, and whether one computed gradients.
        self._masked, self._called = True, False

    def visit(self, visit: Visit) -> dict[str, float]:
        """Run one client's local steps, and return what they log."""
        start, client, program = visit.start, visit.client, visit.program
        program.load(start, self.live)
        self._reset_optimizer(program.optimizer, program.lr_factors[visit.round])
        for param in self._every:
            param.grad = None  # of a step that failed, or what an optimizer of one's own leaves
        if program.memory is not None:
            program.memory.recall(client, program.optimizer)
        # Global generators are seeded per visit, so draws do not depend on the rest of the cohort.
        seed = visit_key(program.seed, visit.draw, client)
        seed_layers(program.device, seed)
        models = program.opponents(start, client)
        drawn = program.drawn(client, visit.round, visit.draw)
        batches = visit.batches()
        keys = step_keys([seed], range(len(batches))).to(program.device)
        self._masked = True
        length = program.spec.pass_length(len(program.population.shards[client]))
        heard = program.logs != () and is_lightning(program.task)
        log = client_log(length) if heard else None
        for step, batch in enumerate(VisitBatches(program, batches, client, visit.draw)):
            rows = {name: table[step] for name, table in drawn.items()}
            # Masks see every call of torch, which takes time; a step without dropout tells that none comes.
            key = keys[step, 0] if self._masked else None
            gradients = partial(self._gradients, visit, batch, step % length, (models, rows), key)
            with (
                nullcontext() if log is None else log.hearing(program.as_given(batch), step + 1 == len(keys))
            ):
                self._take(gradients)
        self._clear()
        if program.memory is not None:
            program.memory.note(client, program.optimizer)
        # Another trainer of the same program finds the optimizer as it was configured.
        self._reset_optimizer(program.optimizer, 1.0)
        try:
            program.kept.check_frozen(program.model)
        finally:
            program.kept.restore(trained=len(batches) > 0)
        return {} if log is None else {name: float(value) for name, value in log.values.items()}

    def _take(self, gradients: Callable[[], Tensor]) -> None:
        """Take a step of the optimizer.

        Raises:
            UserError: If the optimizer does not call the closure that it is given.
        """
        if not self._closes:
            gradients()
            self._step()
            return
        self._called = False
        self._step(torch.enable_grad()(gradients))
        if not self._called:
            raise UserError(
                f"the step of {self._optimizer} must call the closure that it is given, which computes the "
                "gradients, as with Lightning's Trainer."
            )

    def _gradients(
        self,
        visit: Visit,
        batch: tuple[Tree, Tree],
        batch_idx: int,
        beside: tuple[tuple[Params, ...], Params],
        key: Tensor | None,
    ) -> Tensor:
        """Compute the gradients of a batch's loss, ``beside`` frozen models and what the step draws."""
        program = visit.program
        masks = None if key is None else Masks(key)
        if not is_lightning(program.model):  # as in a plain loop
            self._clear()
        with masks or nullcontext():
            with program.fabric.autocast():
                loss = program.loss(lambda: program.step_loss(batch, batch_idx), batch, *beside)
            # As a Trainer does: a step may read the last gradients, and those that it makes do not count.
            if is_lightning(program.model):
                self._clear()
            program.fabric.backward(loss)
        self._masked, self._called = masks is not None and masks.seen, True
        if self._corrects:
            self._correct(visit)
        return loss.detach()

    @torch.no_grad()
    def _correct(self, visit: Visit) -> None:
        """Let the objective correct the gradients of a step."""
        params, objective = self._params, visit.program.objective
        grads = {name: p.grad for name, p in params.items() if p.grad is not None}
        for name, grad in objective.corrected(grads, params, visit.start, visit.client).items():
            params[name].grad = grad

    def _reset_optimizer(self, optimizer: Optimizer, factor: float) -> None:
        optimizer.state.clear()
        optimizer.state.update({param: _copy(state) for param, state in self._state.items()})
        for part in self._own:
            if part.changed():
                part.restore()
        for group, initial in zip(optimizer.param_groups, self._groups, strict=True):
            group.update(initial)
        scale_lr(optimizer.param_groups, [g["lr"] for g in self._groups], factor)


def _copy(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


def without_constants(program: Program) -> Program:
    """Return a program that does not send the buffers that a client's first steps leave alone.

    Positional encodings are such, and frozen statistics of BatchNorm.
    """
    buffers = program.state().keys() - program.trainable().keys()
    if not buffers or program.whole:
        return program
    ends = _first_steps(program, _FIRST, lambda visit: SequentialTrainer().train([visit]))
    if ends is None:
        return program
    live = program.state()
    note_constants(program.model, [name for name in buffers if equal(ends[name][0], live[name])])
    return replace(program, snapshot=None)


def with_logs(program: Program, logs: Callable[[Visit], dict[str, float]], *, whole: bool) -> Program:
    """Return a program that knows what its LightningModule logs in training, from a first step.

    Args:
        program: The program.
        logs: Trains a client, or takes its first step, and returns what it logs.
        whole: Whether ``logs`` cuts the training short itself.
    """
    names = _first_steps(program, None if whole else 1, logs) if is_lightning(program.task) else None
    return replace(program, logs=tuple(names or ()))


def _first_steps(program: Program, steps: int | None, run: Callable[[Visit], Any]) -> Any:
    """Let the client with most examples take steps, or all, from the model as it is; None if it cannot."""
    start = {name: value.detach().clone() for name, value in program.state().items()}
    client = int(program.population.sizes.argmax())
    spec = program.spec if steps is None else replace(program.spec, epochs=None, steps=steps)
    short = replace(program, spec=spec, objective=FedAvg(), agreement=Agreement("off"), features=None)
    try:
        return run(Visit(start, client, 0, short)) if len(program.population.shards[client]) else None
    except UserError:
        raise
    except Exception:  # whatever is wrong with a step is said in its turn
        return None
    finally:
        program.load(start)
