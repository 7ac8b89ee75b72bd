"""Local training of many clients at once: one ``vmap`` over a stack of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins import MixedPrecision
from torch import Tensor, nn, optim
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer

from flsel.errors import UserError
from flsel.local.program import Program, scale_lr
from flsel.local.tasks import loss_of
from flsel.stack import Params

# Optimizers whose step treats every element alike, so that stacking models changes nothing.
ELEMENTWISE = (
    optim.SGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax, optim.Adagrad,
    optim.Adadelta, optim.RMSprop, optim.ASGD, optim.Rprop,
)  # fmt: skip


@final
class VmapTrainer:
    """Train the clients of a cohort together, as one stacked model.

    The same ``training_step`` runs under ``torch.func.vmap`` with the same batches as
    :class:`~flsel.local.sequential.SequentialTrainer`; the same optimizer class updates the stacked leaves.

    Args:
        program: The client's side of the run.
        fabric: Device and precision.
        optimizer: Local optimizer of the task's parameters; its class and settings are used.
        chunk: Most clients in one stack, which bounds memory; None means all.

    Raises:
        UserError: If the model or the optimizer cannot be stacked; the message says why.
    """

    def __init__(
        self, program: Program, fabric: Fabric, optimizer: Optimizer, chunk: int | None = None
    ) -> None:
        reason = why_not_vmap(program, fabric, optimizer)
        if reason is not None:
            raise UserError(f"local.backend vmap cannot train this model: {reason}; use sequential.")
        self._program = program
        self._fabric = fabric
        self._optimizer = optimizer
        self._chunk = chunk
        self._call = _Step(program.task)
        every = program.task.named_parameters(remove_duplicate=False)
        # functional_call looks for tied weights in every call unless it is told that there are none.
        self._tied = len(list(every)) > len(list(program.task.parameters()))
        names = {id(p): name for name, p in program.trainable().items()}
        self._groups = [
            ({k: v for k, v in g.items() if k != "params"}, [names[id(p)] for p in g["params"]])
            for g in optimizer.param_groups
        ]
        self._prefix = "task." if program.model is program.task else "task.net."

    def train(self, starts: Params, clients: Sequence[int], round: int) -> Params:
        """Train each client from its own start (see :class:`flsel.local.program.LocalTrainer`)."""
        ends = {name: torch.empty_like(start) for name, start in starts.items()}
        sizes = [len(self._program.population.shards[c]) for c in clients]
        steps = [self._program.spec.num_steps(n) for n in sizes]
        # Longest first: the clients still training are always a prefix of the stack.
        order = sorted(range(len(clients)), key=lambda row: -steps[row])
        width = self._chunk or max(len(order), 1)
        self._program.task.train()
        for first in range(0, len(order), width):
            rows = order[first : first + width]
            stack = _Stack(self, starts, rows, [clients[row] for row in rows], round)
            stack.train([steps[row] for row in rows], ends)
        return ends


class _Stack:
    """The models of one chunk of clients on their way through a round; row i is client ``clients[i]``."""

    def __init__(
        self, trainer: VmapTrainer, starts: Params, rows: list[int], clients: list[int], round: int
    ) -> None:
        self.trainer = trainer
        self.program = trainer._program
        self.rows = torch.tensor(rows, device=self.program.task.device)
        self.clients = torch.tensor(clients, device=self.program.task.device)
        self.starts = {name: start[self.rows] for name, start in starts.items()}
        self.params = {name: _laid_out(start).requires_grad_() for name, start in self.starts.items()}
        self.models = self.program.objective.models(self.starts, self.clients)
        batches = [self.program.batches(client, round) for client in clients]
        self.positions = pad_sequence(batches, batch_first=True, padding_value=-1)  # [n, steps, size]
        self.lengths = (self.positions >= 0).sum(dim=2)
        groups = [
            dict(settings, params=[self.params[name] for name in names])
            for settings, names in trainer._groups
        ]
        make: Callable[..., Optimizer] = type(trainer._optimizer)
        self.optimizer = make(groups)
        base = [settings["lr"] for settings, _ in trainer._groups]
        scale_lr(self.optimizer.param_groups, base, self.program.lr_factors[round])

    def train(self, steps: list[int], ends: Params) -> None:
        """Run every client's local steps and write the end models into ``ends``."""
        for step in range(max(steps, default=0)):
            active = sum(s > step for s in steps)
            if active < len(self.clients):
                self._retire(active, ends)
            self._step(step)
        self._retire(0, ends)

    def _retire(self, active: int, ends: Params) -> None:
        """Write the finished rows to ``ends`` and go on with the first ``active`` ones."""
        for name, param in self.params.items():
            ends[name][self.rows[active:]] = param.detach()[active:]
            old = param.shape
            state: dict[str, Any] = self.optimizer.state[param]
            for key, value in state.items():
                if isinstance(value, Tensor) and value.shape == old and value.ndim > 0:
                    state[key] = value[:active].clone()
            param.data = param.data[:active].clone()
            param.grad = None
            self.starts[name] = self.starts[name][:active]
        self.models = tuple({n: v[:active] for n, v in model.items()} for model in self.models)
        self.rows, self.clients = self.rows[:active], self.clients[:active]

    def _step(self, step: int) -> None:
        """Take one local step of every client still training."""
        active = len(self.clients)
        positions, lengths = self.positions[:active, step], self.lengths[:active, step]
        total = torch.zeros((), device=self.program.task.device)
        # A short batch is a batch of another size: clients are vectorised within equal sizes, so that
        # the training_step's mean needs no mask.
        for length in sorted(set(lengths.tolist())):
            rows = (lengths == length).nonzero().squeeze(1)
            total = total + self._losses(rows, positions[rows, :length], step).sum()
        self.optimizer.zero_grad()
        self.trainer._fabric.backward(total)
        grads = {name: p.grad for name, p in self.params.items() if p.grad is not None}
        with torch.no_grad():
            self.program.objective.correct(grads, self.params, self.starts, self.clients)
        self.optimizer.step()

    def _losses(self, rows: Tensor, positions: Tensor, step: int) -> Tensor:
        """Return the losses of some rows, ``[n]``, on batches of one size, ``[n, size]``."""
        whole = len(rows) == len(self.clients)
        params = {
            self.trainer._prefix + name: p if whole else p[rows.to(p.device)]
            for name, p in self.params.items()
        }
        models = self.models
        if models and not whole:
            models = tuple({n: v[rows.to(v.device)] for n, v in model.items()} for model in models)
        x, y = self.program.batch(positions)
        call, tied = self.trainer._call, self.trainer._tied

        def loss(params: Params, models: tuple[Params, ...], x: Tensor, y: Tensor) -> Tensor:
            return self.program.loss(
                lambda: torch.func.functional_call(call, params, (x, y, step), tie_weights=tied), x, models
            )

        losses: Tensor = torch.func.vmap(loss)(params, models, x, y)
        return losses


def _laid_out(stack: Tensor) -> Tensor:
    """Copy a stack; matrices ``[n, out, in]`` are stored as ``[n, in, out]``.

    A linear layer's batched gradient comes in that order, and need then not be transposed in each step.
    """
    if stack.ndim == 3:
        return stack.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
    return stack.clone()


class _Step(nn.Module):
    """Give ``training_step`` the name ``forward``, which is what ``functional_call`` calls."""

    def __init__(self, task: nn.Module) -> None:
        super().__init__()
        self.task = task

    def forward(self, x: Tensor, y: Tensor, step: int) -> Tensor:
        return loss_of(self.task.training_step((x, y), step))  # type: ignore[operator]


def why_not_vmap(program: Program, fabric: Fabric, optimizer: Optimizer) -> str | None:
    """Say why a program cannot be vectorised over clients, or None if it can."""
    if isinstance(fabric.strategy.precision, MixedPrecision):
        return "torch.func.vmap does not apply mixed precision to linear layers and convolutions"
    for module in program.task.modules():
        kind = type(module).__name__
        if isinstance(module, _BatchNorm):
            return f"{kind} keeps running statistics, which a stack cannot (GroupNorm can take its place)"
        if isinstance(module, _DropoutNd) and module.p > 0:
            return f"{kind} draws masks, which would depend on who else is in the stack"
        if isinstance(module, nn.RNNBase):
            return f"{kind} is not supported by torch.func.vmap"
    if not isinstance(optimizer, ELEMENTWISE):
        return f"{type(optimizer).__name__} does not treat every element alike"
    if set(program.state()) != set(program.trainable()):
        return "it has floating-point buffers"
    return None
