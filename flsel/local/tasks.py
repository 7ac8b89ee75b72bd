"""The client's program: the user's LightningModule, or a classifier around a plain network."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flsel.data.trees import Form, Tree, call, mapped
from flsel.errors import UserError
from flsel.local.lightning_module import NEEDS_TRAINER, NeedsTrainer, has_own_steps, take
from flsel.local.snapshot import mutable_objects
from flsel.local.torch_internals import without_compiler
from flsel.params import called

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule

LARGEST = torch.finfo(torch.float32).max
"""What a step can multiply a parameter of single precision by."""
BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_CONVOLUTIONS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip
_CONVOLVING: WeakSet[nn.Module] = WeakSet()
OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]


class Classifier(nn.Module):
    """Train a network by cross-entropy on its logits, by another loss, or by the loss that it returns itself.

    Args:
        net: Maps inputs ``[B, ...]`` to logits ``[B, C]``, or to other outputs. A dict of inputs goes to its
            arguments by name, a tuple by place.
        optimizer: Makes the local optimizer of the network's parameters.
        loss: Maps outputs and targets to a number; None is the cross-entropy.

    Attributes:
        own: How the network takes a whole batch and returns its own loss, which trains it; None otherwise.
        compute: Precision in which the network trains, its parameters rounded to it in each step and
            updated in their own; None computes in that.
    """

    def __init__(self, net: nn.Module, optimizer: OptimizerFactory, loss: nn.Module | None = None) -> None:
        super().__init__()
        self.net = net
        self.loss = loss
        self.own: Form | None = None
        self.compute: torch.dtype | None = None
        self._optimizer = optimizer

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(self.parameters()).device

    @property
    def by_cross_entropy(self) -> bool:
        """Whether its loss is the cross-entropy of class labels."""
        return self.loss is None and self.own is None

    def forward(self, x: Tree) -> Tensor:
        """Return the logits, ``[B, C]``, or the outputs, ``[B, ...]``."""
        logits: Tensor
        if self.compute is None or not self.training:
            logits = _logits(call(self.net, x))
            return logits
        kept = {id(p) for m in self.net.modules() if isinstance(m, BATCH_NORM) for p in m.parameters(False)}
        rounded = {
            name: param if id(param) in kept else param.to(self.compute)
            for name, param in self.net.named_parameters()
        }
        inputs = mapped(lambda part: part.to(self.compute) if part.is_floating_point() else part, x)
        logits = call(
            lambda *values, **named: _logits(called(self.net, rounded, *values, **named)), inputs, self.net
        )
        return logits.to(next(self.net.parameters()).dtype)

    def training_step(self, batch: tuple[Tree, Tree], batch_idx: int) -> Tensor:
        """Return the batch's mean loss."""
        x, y = batch
        if self.own is not None:
            return own_loss(self.net, self.own.joined(x, y))
        if self.loss is None:
            return nn.functional.cross_entropy(self(x), y)
        value: Tensor = self.loss(*matched(self(x), y, self.loss))
        return value

    def configure_optimizers(self) -> Optimizer:
        """Make the local optimizer."""
        return self._optimizer(p for p in self.net.parameters() if p.requires_grad)


def own_loss(net: nn.Module, batch: Tree) -> Tensor:
    """Return the loss that a network computes itself of a whole batch (Hugging Face's ``model(**batch)``)."""
    output = call(net, batch)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss_of({"loss": loss})


def _logits(output: Any) -> Any:
    """Take the logits out of what a network returned, which may be a mapping (Hugging Face, torchvision)."""
    named = (
        (output[name] for name in ("logits", "out") if name in output) if isinstance(output, Mapping) else ()
    )
    return next(iter(named), output)


def matched(output: Tensor, y: Tree, loss: nn.Module) -> tuple[Tensor, Tree]:
    """Bring outputs and targets to the shapes that a loss compares.

    Targets with as many numbers as the outputs take their shape and dtype: torch would broadcast ``[B]``
    beside ``[B, 1]`` to a table. A tuple of numbers becomes ``[B, n]`` for torch's own losses. For losses
    of classes, classes that come last (``[B, L, C]`` beside ``[B, L]``) come second.
    """
    if isinstance(y, tuple) and type(loss).__module__.startswith("torch."):
        y = torch.stack(y, dim=-1)  # one tensor is what torch's losses compare with
    if not isinstance(y, Tensor) or not isinstance(output, Tensor):
        return output, y
    classes = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    if not classes and y.numel() == output.numel():
        return output, y.view_as(output).to(output.dtype)
    last = y.ndim > 1 and output.shape[:-1] == y.shape and output.shape[:1] + output.shape[2:] != y.shape
    return (output.movedim(-1, 1) if classes and last else output), y


Task: TypeAlias = "Classifier | LightningModule"


def is_lightning(model: object) -> TypeGuard[LightningModule]:
    """Tell whether a model is a LightningModule; without Lightning imported there is none."""
    lightning = sys.modules.get("lightning.pytorch")
    return lightning is not None and isinstance(model, lightning.LightningModule)


def as_task(
    model: nn.Module,
    optimizer: OptimizerFactory | None,
    classifier: type[Classifier] = Classifier,
    *,
    loss: nn.Module | None = None,
    whole: bool = False,
) -> Task:
    """Turn a model into a client's program.

    Args:
        model: A LightningModule is taken as it is; any other module must return logits.
        optimizer: Local optimizer; None means the LightningModule's own, or SGD with learning rate 0.1.
        classifier: What a network is put in.
        loss: The network's loss; None is the cross-entropy.
        whole: Only Lightning's own Trainer can train a LightningModule.

    Raises:
        UserError: If there is nothing to train, or a LightningModule brings no step, or gets a loss, or only
            a Trainer can train it.
    """
    given = type(model).__name__
    taken = take(model, whole=whole) if is_lightning(model) else None
    if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
        raise UserError(f"model must be a torch module with trainable parameters, got {given}.")
    if any(p.is_complex() or p.is_meta for p in model.parameters()):
        raise UserError(f"model {given} must have parameters that are real numbers.")
    if taken is not None and loss is not None:
        raise UserError(
            f"loss must be null for {given}, a LightningModule, whose training_step has its loss."
        )
    if taken is not None:
        return taken
    made = classifier(model, optimizer or (lambda params: torch.optim.SGD(params, lr=0.1)), loss)
    return made.train()  # as a plain loop does; a Trainer leaves the modes of a LightningModule as they are


class OwnSteps(Optimizer):
    """Placeholder for the optimizers and schedules that Lightning's Trainer itself steps.

    Args:
        params: The module's trainable parameters.
    """

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {})


def make_optimizer(task: Task, override: OptimizerFactory | None, *, whole: bool = False) -> Optimizer:
    """Make a task's local optimizer.

    Args:
        task: The client's program.
        override: Takes the place of the task's ``configure_optimizers`` if given.
        whole: Only Lightning's own Trainer can train the task, with optimizers that it asks the task for.

    Returns:
        The optimizer; :class:`OwnSteps` where a Trainer steps by other rules than one optimizer's.

    Raises:
        NeedsTrainer: If only a Trainer can use what ``configure_optimizers`` returns.
        UserError: If it is not one optimizer of the task's parameters, or one that needs a closure.
    """
    if whole and override is None:
        try:
            if not (is_lightning(task) and has_own_steps(task)):
                return make_optimizer(task, None)
        except NeedsTrainer:  # several optimizers, say
            pass
        return OwnSteps(_trainable(task))
    source = f"configure_optimizers of {type(task).__name__}" if override is None else "local.optimizer"
    made: Any
    with without_compiler():
        made = override(_trainable(task)) if override else _alone(task.configure_optimizers())
    if isinstance(made, (list, tuple, dict)) and made and override is None:
        raise NeedsTrainer(f"{source} returns several optimizers or a schedule, {NEEDS_TRAINER}.")
    if not isinstance(made, Optimizer):
        raise UserError(
            f"{source} must return one torch optimizer, got {type(made).__name__}; a learning-rate schedule "
            "over rounds is set with local.lr_schedule."
        )
    if override is None and _needs_closure(made):
        raise NeedsTrainer(f"{source} returns {type(made).__name__}, {NEEDS_TRAINER}.")
    check_optimizer(made, source)
    own = {id(p) for p in task.parameters()}
    for group in made.param_groups:
        if not own.issuperset(map(id, group["params"])):
            raise UserError(f"{source} must be of the model's own parameters, and it has others too.")
        # self.parameters() has the frozen ones as well, which no step moves.
        group["params"] = [p for p in group["params"] if p.requires_grad]
    _check_copies(made, task, source)
    return made


def _check_copies(optimizer: Optimizer, task: Task, source: str) -> None:
    """Refuse an optimizer that has copied the parameters: they would be the initial model's for ever."""
    known = [optimizer, *task.modules(), *task.parameters(), *task.buffers()]
    skip = ("state", "param_groups", "defaults")
    own = [value for name, value in vars(optimizer).items() if name not in skip]
    hooks = [
        hook
        for value in own
        if isinstance(value, dict)
        for hook in value.values()
        if inspect.isfunction(hook)
    ]
    own += [held for hook in hooks for held in inspect.getclosurevars(hook).nonlocals.values()]
    objects = mutable_objects(own, known)
    for tensor in [value for value in objects if isinstance(value, Tensor)]:
        for param in task.parameters():
            alike = tensor.shape == param.shape and tensor.dtype == param.dtype
            if alike and torch.equal(tensor, param) and bool((param != param.flatten()[0]).any()):
                raise UserError(
                    f"{source}: {type(optimizer).__name__} copies parameters when it is made, before clients "
                    "have received their models: let its first step make the copies, in optimizer.state."
                )


def _trainable(task: Task) -> Iterator[nn.Parameter]:
    return (param for param in task.parameters() if param.requires_grad)


def _needs_closure(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer's step computes the loss again, as L-BFGS's."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def _alone(made: object) -> object:
    """Take the optimizer out of what else Lightning lets ``configure_optimizers`` return for one."""
    if isinstance(made, dict) and set(made) == {"optimizer"}:
        return made["optimizer"]
    return made[0] if isinstance(made, (list, tuple)) and len(made) == 1 else made


def check_optimizer(optimizer: Optimizer, where: str) -> None:
    """Refuse an optimizer whose step computes the loss again, as L-BFGS's, and numbers that no step can use.

    Raises:
        UserError: If it needs a closure, or one of its numbers is not finite or beyond the precision of the
            parameters; the message starts with ``where``.
    """
    if _needs_closure(optimizer):
        raise UserError(
            f"{where} must step with one gradient, and {type(optimizer).__name__} needs a closure that "
            "computes the loss again; take SGD or Adam, for example."
        )
    for group in optimizer.param_groups:
        for name, value in group.items():
            if isinstance(value, float) and not abs(value) <= LARGEST:
                raise UserError(
                    f"{where}: {name} must be a finite number of at most {LARGEST:.1e} in size, got {value}."
                )


def writes_to_inputs(model: nn.Module) -> str:
    """Return the sentence about a model whose ``forward`` writes to its inputs."""
    name = type(model).__name__
    return f"model {name} writes to its inputs, which are the dataset: change a copy (x = x.clone())."


def averages_examples(task: Task) -> TypeGuard[Classifier]:
    """Tell whether a task's loss is known to be the mean of its examples' cross-entropies."""
    own_step = type(task).training_step is not Classifier.training_step
    return isinstance(task, Classifier) and not own_step and task.by_cross_entropy


def convolves(task: nn.Module) -> bool:
    """Tell whether a module has convolutions, whose clients a CPU trains no faster as a stack of models.

    Those that it computes by functions are known once a step was recorded (:func:`note_convolutions`).
    """
    return task in _CONVOLVING or any(isinstance(module, _CONVOLUTIONS) for module in task.modules())


def note_convolutions(task: nn.Module) -> None:
    """Note that a module's recorded step convolves."""
    _CONVOLVING.add(task)


def loss_of(output: Any) -> Tensor:
    """Take the loss out of what a ``training_step`` returned: a tensor, or a mapping with ``loss``."""
    loss = output.get("loss") if isinstance(output, dict) else output
    if not isinstance(loss, Tensor) or loss.ndim != 0 or not loss.is_floating_point():
        got = f"{loss.dtype} {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise UserError(
            f"training_step must return a scalar loss, or a mapping with one under 'loss', got {got}."
        )
    return loss
