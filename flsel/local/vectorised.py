"""Local training of many clients at once: one ``vmap`` over a stack of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from flsel.errors import UserError
from flsel.local.dropout import Masks, step_keys, visit_key
from flsel.local.learning_rates import scale_lr
from flsel.local.optimizers import groups_of, made_like
from flsel.local.program import Program
from flsel.local.tasks import loss_of
from flsel.local.tensor_queries import Queries, mappable
from flsel.local.torch_internals import writes_to
from flsel.local.trainer import LocalTrainer
from flsel.local.verify import Sample, blanked, gradients
from flsel.local.visit import Visit, alike
from flsel.local.vmap_limits import DRAWS, Unmapped, refusing, require_vmap
from flsel.params import Params, padded_rows, row, stacked
from flsel.rng import plain_states


@final
class VmapTrainer(LocalTrainer):
    """Train the clients of a federation that have one learning rate together, as one stacked model.

    The same ``training_step`` runs under ``torch.func.vmap`` with the same batches as
    :class:`~flsel.local.sequential.SequentialTrainer`; the same optimizer class updates the stacked leaves.

    Args:
        chunk: Most clients in one stack, which bounds memory; None means all.
    """

    def __init__(self, chunk: int | None = None) -> None:
        self._chunk = chunk
        self._steps: WeakKeyDictionary[Program, _Step] = WeakKeyDictionary()

    def train(self, visits: Sequence[Visit]) -> Params:
        """Train each client from its own start (see :class:`flsel.local.trainer.LocalTrainer`).

        Raises:
            UserError: If a program cannot be stacked; the message says why.
        """
        ends = {n: value.new_empty((len(visits), *value.shape)) for n, value in visits[0].start.items()}
        for group in alike(visits, start=False):
            program = visits[group[0]].program
            program.task.train()
            program.kept.begin()
            steps = {
                r: program.spec.num_steps(len(program.population.shards[visits[r].client])) for r in group
            }
            # Longest first: the clients still training are always a prefix of the stack.
            order = sorted(group, key=lambda row: -steps[row])
            width = self._chunk or len(order)
            for first in range(0, len(order), width):
                rows = order[first : first + width]
                stack = _Stack(self._step(program), rows, [visits[row] for row in rows])
                try:
                    with _undrawn(), blanked(program):
                        stack.train([steps[row] for row in rows], ends)
                except BaseException:
                    program.kept.restore()  # what it left may be no tensor any more
                    raise
        return ends

    def _step(self, program: Program) -> _Step:
        if program not in self._steps:
            require_vmap(program)
            self._steps[program] = _Step(program)
        return self._steps[program]


class _Step:
    """What the stacks of one program share: its training step as a function, and its optimizer's settings."""

    def __init__(self, program: Program) -> None:
        self.loss = program.as_function(_Call(program.task))  # of parameters, inputs, labels, step
        self._like = program.optimizer
        self._groups = groups_of(program.optimizer, program.trainable())

    def optimizer(self, params: Params, factor: float) -> Optimizer:
        """Make the optimizer of stacked parameters, at a factor on its learning rates."""
        groups = [dict(settings, params=[params[name] for name in names]) for settings, names in self._groups]
        optimizer = made_like(self._like, groups)
        scale_lr(optimizer.param_groups, [settings["lr"] for settings, _ in self._groups], factor)
        return optimizer


class _Stack:
    """The models of one chunk of visits on their way through a round; row i is that of visit i."""

    def __init__(self, step: _Step, rows: list[int], visits: list[Visit]) -> None:
        self.step = step
        self.program, factor = visits[0].program, visits[0].program.lr_factors[visits[0].round]
        clients = [visit.client for visit in visits]
        self.rows = torch.tensor(rows, device=self.program.task.device)
        self.clients = torch.tensor(clients, device=self.program.task.device)
        self.starts = stacked([visit.start for visit in visits])
        self.params = {name: _laid_out(start).requires_grad_() for name, start in self.starts.items()}
        self.models = self.program.opponents(self.starts, self.clients)
        batches = [self.program.batches(visit.client, visit.draw) for visit in visits]
        drawn = [self.program.drawn(visit.client, visit.round, visit.draw) for visit in visits]
        self.drawn = padded_rows(drawn)
        self.positions = pad_sequence(batches, batch_first=True, padding_value=-1)  # [n, steps, size]
        self.lengths = (self.positions >= 0).sum(dim=2)
        self.seeds = [visit_key(self.program.seed, visit.draw, visit.client) for visit in visits]
        self.keys = step_keys(self.seeds, range(self.positions.shape[1])).to(self.rows.device)
        self.modes = self.program.kept.modes()
        self.masked = self.asked = True  # until a step tells that it needs no masks, and no answers
        self.optimizer = step.optimizer(self.params, factor)

    def train(self, steps: list[int], ends: Params) -> None:
        """Run every client's local steps and write the end models into ``ends``."""
        for step in range(max(steps, default=0)):
            active = sum(s > step for s in steps)
            if active < len(self.clients):
                self._retire(active, ends)
            self._take(step)
        self._retire(0, ends)

    def _retire(self, active: int, ends: Params) -> None:
        """Write the finished rows to ``ends`` and continue with the first ``active`` ones."""
        kept: dict[Tensor, Tensor] = {}
        for name, param in self.params.items():
            ends[name][self.rows[active:]] = param.detach()[active:]
            # A new leaf: what a module keeps of the step before may hold the old one, in the old shape.
            kept[param] = self.params[name] = param.detach()[:active].clone().requires_grad_()
            state: dict[str, Any] = self.optimizer.state.pop(param, {})
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == param.shape and value.ndim > 0:
                    state[key] = value[:active].clone()
            self.optimizer.state[kept[param]] = state
            self.starts[name] = self.starts[name][:active]
        for group in self.optimizer.param_groups:
            group["params"] = [kept[param] for param in group["params"]]
        self.models = tuple({n: v[:active] for n, v in model.items()} for model in self.models)
        self.rows, self.clients = self.rows[:active], self.clients[:active]

    def _take(self, step: int) -> None:
        """Take one local step of every client still training."""
        active = len(self.clients)
        positions, lengths = self.positions[:active, step], self.lengths[:active, step]
        marks = [writes_to(param) for param in self.params.values()]
        try:
            self._backward(positions, lengths, step)
        except Exception as error:
            self._unchanged()  # What a step keeps is often why it fails.
            if isinstance(error, UserError):
                raise
            # What the model raises by itself is raised here.
            gradients(self.program, self._sample(0, positions[0, : lengths[0]], step), corrected=False)
            said = (str(error).splitlines() or [""])[0][:100]
            raise Unmapped(f"there its step raises {type(error).__name__}: {said}") from error
        self._unchanged()
        if [writes_to(param) for param in self.params.values()] != marks:
            raise Unmapped("its step writes to its parameters (let an optimizer of your own project them)")
        grads = {name: p.grad for name, p in self.params.items() if p.grad is not None}
        with torch.no_grad():
            grads = self.program.objective.corrected(grads, self.params, self.starts, self.clients)
            for name, grad in grads.items():
                self.params[name].grad = grad
        self.optimizer.step()

    def _backward(self, positions: Tensor, lengths: Tensor, step: int) -> None:
        """Compute every client's gradient."""
        total = torch.zeros((), device=self.program.task.device)
        # A short batch is a batch of another size: clients are vectorised within equal sizes, so that
        # the training_step's mean needs no mask.
        for length in sorted(set(lengths.tolist())):
            rows = (lengths == length).nonzero().squeeze(1)
            total = total + self._losses(rows, positions[rows, :length], step).sum()
        self.optimizer.zero_grad()
        with refusing():
            self.program.fabric.backward(total)

    def _unchanged(self) -> None:
        """Refuse a step that leaves something in the module.

        Raises:
            Unmapped: If it does.
        """
        if self.program.kept.changed() or self.program.kept.modes() != self.modes:
            raise Unmapped("its step keeps something in the module (a callback may, between rounds)")

    def _sample(self, one: int, places: Tensor, step: int) -> Sample:
        """Put together a step of one client."""
        return Sample(
            model=row({name: p.detach() for name, p in self.params.items()}, one),
            start=row(self.starts, one),
            client=int(self.clients[one]),
            models=tuple(row(model, one) for model in self.models),
            drawn=row({name: table[:, step] for name, table in self.drawn.items()}, one),
            places=places,
            key=self.keys[step, one],
            seed=self.seeds[one],
            step=step,
        )

    def _losses(self, rows: Tensor, positions: Tensor, step: int) -> Tensor:
        """Return the losses of some rows, ``[n]``, on batches of one size, ``[n, size]``."""
        whole = len(rows) == len(self.clients)
        params = {name: p if whole else p[rows.to(p.device)] for name, p in self.params.items()}
        models = self.models
        if models and not whole:
            models = tuple({n: v[rows.to(v.device)] for n, v in model.items()} for model in models)
        drawn = {name: table[rows.to(table.device), step] for name, table in self.drawn.items()}

        def loss(
            params: Params,
            beside: tuple[tuple[Params, ...], Params],
            batch: tuple[Tensor, Tensor],
            key: Tensor,
        ) -> Tensor:
            masks, queries = Masks(key), Queries()
            with ExitStack() as modes:
                for mode, wanted in ((masks, self.masked), (queries, self.asked)):
                    if wanted:
                        modes.enter_context(mode)
                modes.enter_context(self.program.fabric.autocast())
                value = self.program.loss(lambda: self.step.loss(params, *batch, step), batch, *beside)
            self.masked, self.asked = masks.needed, queries.needed
            return value

        batch, keys = self.program.batch(positions), self.keys[step, rows]
        with refusing(), mappable():
            losses: Tensor = torch.func.vmap(loss)(params, (models, drawn), batch, keys)
        return losses


@contextmanager
def _undrawn() -> Iterator[None]:
    """Refuse steps that draw for a whole stack where each client would for itself.

    Raises:
        Unmapped: If they do.
    """
    drawn, noise = plain_states(), torch.get_rng_state()
    refused = None
    try:
        yield
    except Unmapped as error:
        refused = error  # perhaps for a gradient that is another one each time
    if plain_states() != drawn or not torch.equal(torch.get_rng_state(), noise):
        raise Unmapped(DRAWS) from refused
    if refused is not None:
        raise refused


def _laid_out(stack: Tensor) -> Tensor:
    """Copy a stack; matrices ``[n, out, in]`` are stored as ``[n, in, out]``.

    A linear layer's batched gradient comes in that order, and need then not be transposed in each step.
    """
    if stack.ndim == 3:
        return stack.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
    return stack.clone()


class _Call(nn.Module):
    """Give ``training_step`` the name ``forward``, which is what ``functional_call`` calls."""

    def __init__(self, task: nn.Module) -> None:
        super().__init__()
        self.task = task

    def forward(self, x: Tensor, y: Tensor, step: int) -> Tensor:
        return loss_of(self.task.training_step((x, y), step))  # type: ignore[operator]
