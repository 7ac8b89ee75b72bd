"""What every local trainer runs: the client's program and data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from flsel.data.population import Population
from flsel.data.trees import Tree, call, mapped
from flsel.errors import UserError, short, users_code
from flsel.local.agreement import Agreement
from flsel.local.completeness import ClientWork
from flsel.local.lightning_module import (
    MEASURING,
    NEEDS_TRAINER,
    NeedsTrainer,
    call_step,
    trained_by,
)
from flsel.local.optimizers import OptimizerMemory
from flsel.local.output_layer import Features
from flsel.local.personal import PersonalParts
from flsel.local.plain import PlainFabric, channels_last
from flsel.local.schedule import BatchSpec, batch_table
from flsel.local.snapshot import ModuleSnapshot
from flsel.local.tasks import Classifier, Task, loss_of
from flsel.local.torch_internals import copy_all
from flsel.objectives import Objective
from flsel.objectives.objective import overrides
from flsel.params import Params, places
from flsel.rng import generator, repeatable, seed_layers, torch_seed

if TYPE_CHECKING:
    from lightning.fabric import Fabric


# Buffers that are not sent: those that no step changes, and those that began with infinities.
_CONSTANTS: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()


@dataclass(frozen=True, eq=False)
class Program:
    """The client's side of a federation: everything that local training depends on but start and round.

    Attributes:
        task: Module whose ``training_step`` gives the loss, on its device and in its precision.
        model: The module whose parameter names the run uses: ``task`` itself or the network inside it.
        population: The clients' data, on the device that holds it.
        spec: Batches of one visit.
        objective: What is minimised besides the loss.
        lr_factors: Factor on the local learning rate for every communication round.
        seed: The run's seed.
        optimizer: Local optimizer of the task's parameters.
        fabric: Device and precision.
        at_once: Most examples in a forward pass of an evaluation.
        channels_last: Evaluations lay out images with their channels last.
        differentiates: The task computes gradients in evaluations, too: a penalty or an energy, say.
        losses_in_one_pass: Losses of single examples can be asked together (:mod:`flsel.local.measure`).
        features: Looks at what enters the output layer, for an objective that reads or feeds it; else None.
        whole: Only Lightning's own Trainer can train the task. Outside of training its loss is the
            cross-entropy of its logits, if it has logits of classes.
        classifies: The task's outputs tell the targets' classes: logits ``[B, C]``, or see ``threshold``.
        threshold: What an output is above for class 1 of two, where each example has one output; else None.
        measurable: Losses of the task can be asked outside of training.
        memory: What clients' optimizers remember between visits; None starts each of them anew.
        work: How many of its local steps a client does; None lets all do all of them.
        personal: What clients keep of the model between their trainings; None sends all of it.
        agreement: What the self-check has found.
        snapshot: Restores what the task keeps and does not send; None takes a snapshot of the task as it is.
        logs: What a LightningModule logs in training, by name; None before it is known.
        hooks: What has each of the hooks that change batches, by their names.
    """

    task: Task
    model: nn.Module
    population: Population
    spec: BatchSpec
    objective: Objective
    lr_factors: Sequence[float]
    seed: int
    optimizer: Optimizer
    fabric: Fabric | PlainFabric
    at_once: int = 2048
    channels_last: bool = False
    differentiates: bool = False
    losses_in_one_pass: bool = False
    features: Features | None = None
    whole: bool = False
    classifies: bool = True
    threshold: float | None = None
    measurable: bool = True
    memory: OptimizerMemory | None = None
    work: ClientWork | None = None
    personal: PersonalParts | None = None
    agreement: Agreement = field(default_factory=Agreement)
    snapshot: ModuleSnapshot | None = None
    logs: tuple[str, ...] | None = None
    hooks: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.snapshot is None:
            object.__setattr__(self, "snapshot", ModuleSnapshot(self.task, self.state().values(), self.model))

    @property
    def kept(self) -> ModuleSnapshot:
        """The snapshot of what the task keeps, which each visit and each evaluation restores."""
        assert self.snapshot is not None
        return self.snapshot

    @cached_property
    def device(self) -> torch.device:
        """Where the task's parameters are."""
        return self.task.device

    def state(self) -> Params:
        """Return the live tensors that are sent between server and clients, by name.

        These are the trainable parameters and the floating-point buffers that steps change (BatchNorm's
        running statistics). Frozen parameters, integer buffers, constant buffers (:func:`note_constants`) and
        those that hold infinities when a run starts (causal masks) never change hands: each client starts
        with those of the model as it was built.
        """
        return exchanged(self.model)

    def shared(self) -> Params:
        """Return the live tensors that are sent, :meth:`state` without what clients keep."""
        kept = () if self.personal is None else self.personal.names
        return {name: value for name, value in self.state().items() if name not in kept}

    def of_client(self, params: Params, client: int) -> Params:
        """Return the model that a client has, from the global one."""
        return params if self.personal is None else self.personal.start(params, client)

    def trainable(self) -> Params:
        """Return the live trainable parameters, by name."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    @property
    def by_logits(self) -> bool:
        """Whether losses outside of training are cross-entropies of the task's logits."""
        own = isinstance(self.task, Classifier) and self.task.by_cross_entropy
        return self.classifies and (self.whole or own)

    def outputs(self, x: Tree) -> Any:
        """Return the task's outputs for a batch of inputs; those of :attr:`classifies` if it classifies."""
        return call(self.task, x)

    def predicted(self, outputs: Tensor) -> Tensor:
        """Return the classes that the outputs of a task that classifies tell, ``[B]``."""
        return outputs.argmax(dim=1) if self.threshold is None else outputs.flatten() > self.threshold

    def as_given(self, batch: tuple[Tree, Tree]) -> Tree:
        """Return a batch as a step takes it: a LightningModule in the form of the data set's own examples."""
        return batch if isinstance(self.task, Classifier) else self.population.form.joined(*batch)

    def parted(self, given: Tree) -> tuple[Tree, Tree]:
        """Return inputs and targets of a batch that a step takes (:meth:`as_given`)."""
        if isinstance(self.task, Classifier):
            x, y = given
            return x, y
        return self.population.form.parted(given)

    def step_loss(self, batch: tuple[Tree, Tree], batch_idx: int) -> Tensor:
        """Return the loss of the task's own step on a batch, a scalar."""
        output = call_step(self.task, self.as_given(batch), batch_idx)
        if output is None:
            raise NeedsTrainer(f"training_step returns None to skip a batch, {NEEDS_TRAINER}.")
        return loss_of(output)

    def measured_loss(self, batch: tuple[Tree, Tree], batch_idx: int = 0) -> Tensor:
        """Return the mean loss of the loaded model on a batch outside of training, a scalar.

        Raises:
            UserError: If the task has none.
        """
        self.require_losses()
        if self.whole and self.by_logits:
            return nn.functional.cross_entropy(self.outputs(batch[0]), batch[1])
        return self.step_loss(batch, batch_idx)

    def require_losses(self) -> None:
        """Refuse to ask for a loss outside of training where there is none.

        Raises:
            UserError: If there is none.
        """
        if not self.measurable:
            raise UserError(
                f"the loss of {type(self.model).__name__} cannot be asked outside of training, since "
                "Lightning's Trainer alone runs its steps: take a selector that reads no losses, such as "
                "Uniform."
            )

    def load(self, params: Params, live: Params | None = None) -> None:
        """Copy a model into the task; personal parts that it lacks are the mean of the clients'.

        Args:
            params: The model.
            live: What :meth:`state` returns, where that is known.
        """
        if self.personal is not None and not params.keys() >= set(self.personal.names):
            params = self.personal.mean(params)
        live = self.state() if live is None else live
        with torch.no_grad():
            copy_all([live[name] for name in params], list(params.values()))

    def set_back(self) -> None:
        """Restore the task after an attempt at training that failed."""
        self.kept.restore()
        for param in self.task.parameters():
            param.grad = None

    @contextmanager
    def evaluating(self, params: Params | None = None, *, plain: bool = False) -> Iterator[None]:
        """Have a model ready for evaluations within the block. Do not call :meth:`load` there.

        A model that draws then, too, draws the same in each block, whatever was drawn before.

        Args:
            params: The model; None takes the task as it is, before a run.
            plain: Images have their channels first in any case.
        """
        if params is not None:
            self.load(params)
        self.task.eval()
        trusted = self.agreement.disagreement("evaluation") is None
        laid_out = channels_last(self.task) if self.channels_last and trusted and not plain else nullcontext()
        try:
            with self.drawing("evaluation"), laid_out:
                yield
        finally:
            self.kept.restore()

    @contextmanager
    def measuring(self, params: Params | None = None, *, plain: bool = False) -> Iterator[None]:
        """Have a model ready for its outputs and losses: :meth:`evaluating` in the run's precision.

        No graph is kept but for a task that computes gradients itself; it leaves none behind.

        Args:
            params: As for :meth:`evaluating`.
            plain: As for :meth:`evaluating`.
        """
        graph = torch.enable_grad() if self.differentiates else torch.no_grad()
        with self.evaluating(params, plain=plain), graph, self.fabric.autocast():
            try:
                yield
            finally:
                if self.differentiates:
                    self.optimizer.zero_grad()
                    self.task.zero_grad()

    @contextmanager
    def drawing(self, purpose: str, *index: int) -> Iterator[None]:
        """Let users' code draw from global generators what the run's seed, a purpose and indices say."""
        device = self.device
        with repeatable(None, [device] if device.type == "cuda" else []):
            self.seed_draws(purpose, *index)
            yield

    def seed_draws(self, purpose: str, *index: int) -> None:
        """Seed the generators again within :meth:`drawing`, for a part with indices of its own."""
        seed_layers(self.device, torch_seed(self.seed, purpose, *index))

    def opponents(self, starts: Params, clients: int | Tensor) -> tuple[Params, ...]:
        """Return the frozen models that the objective's contrast compares with, see :meth:`Objective.models`.

        Raises:
            UserError: If they are no models, or the objective has no contrast.
        """
        models = self.objective.models(starts, clients)
        name = type(self.objective).__name__
        if not (isinstance(models, tuple) and all(isinstance(model, Mapping) for model in models)):
            raise UserError(f"{name}.models must return a tuple of models like starts, got {short(models)}.")
        if models and self.features is None:
            raise UserError(f"{name}.models names models, and {name}.contrast is not defined.")
        return models

    def drawn(self, client: int, round: int, turn: int) -> Params:
        """Return what the steps of a visit draw for generated features, on the task's device.

        Args:
            client: Client id.
            round: Communication round.
            turn: What the randomness depends on besides seed and client; the round, or a count of turns.

        Returns:
            Tables by name, each ``[steps, ...]``; none where nothing is generated (:meth:`Objective.draw`).
        """
        if not overrides(self.objective, "draw"):
            return {}
        steps = self.spec.num_steps(len(self.population.shards[client]))
        rng = generator(self.seed, "objective", turn, client)
        device, dtype = self.device, next(iter(self.trainable().values())).dtype
        return {
            name: table.to(device, dtype if table.is_floating_point() else None)
            for name, table in self.objective.draw(steps, self.spec.size, round, rng).items()
        }

    def as_function(self, call: nn.Module) -> Callable[..., Tensor]:
        """Return a module that holds the task as ``task``, as a function of parameters and its arguments.

        The parameters go by the names that the run uses (:meth:`trainable`).
        """
        prefix = "task." if self.model is self.task else "task.net."
        named_there = {place: name.removeprefix(prefix) for place, name in places(call).items()}

        def called(params: Params, *values: Any) -> Tensor:
            named = {place: params[name] for place, name in named_there.items() if name in params}
            made: Tensor = torch.func.functional_call(call, named, values, tie_weights=False)
            return made

        return called

    def loss(
        self,
        step: Callable[[], Tensor],
        batch: tuple[Tree, Tree],
        models: tuple[Params, ...],
        drawn: Params,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of one client's batch with what the objective adds to it, a scalar.

        Args:
            step: Runs the task's ``training_step`` on the batch and returns its loss.
            batch: Inputs ``[B, ...]`` and labels ``[B]``.
            models: Frozen models to compare with; without any there is no contrast.
            drawn: The step's rows of :meth:`drawn`; without any nothing is generated.
            weights: Weight of each example in what the objective adds, ``[B]``; a contrast must then be a
                mean over examples (:attr:`Objective.averages`). None takes the mean.
        """
        if not models and not drawn:
            return step()
        assert self.features is not None  # see opponents, and runner.network
        loss, own, head = self.features.during(step)
        x, y = batch
        if drawn:
            shares = own.new_full((len(own),), 1.0 / len(own)) if weights is None else weights
            loss = loss + self.objective.generated(head, own, (y, shares), drawn)
        if not models:
            return loss
        others = [self.features.of(model, x) for model in models]
        if weights is None:
            return loss + self.objective.contrast(own, others)

        def one(own: Tensor, *others: Tensor) -> Tensor:
            return self.objective.contrast(own[None], [other[None] for other in others])

        return loss + (torch.func.vmap(one)(own, *others) * weights).sum()

    def steps(self, client: int, turn: int, most: int | None = None) -> int:
        """Return the local steps of a training.

        Args:
            client: Client id.
            turn: The round, or the client's earlier trainings in an asynchronous run.
            most: Most of them that are taken; None takes all.
        """
        examples = len(self.population.shards[client])
        work = self.work
        steps = self.spec.num_steps(examples) if work is None else work.steps(client, turn, examples)
        return steps if most is None else min(most, steps)

    def batches(self, client: int, round: int) -> Tensor:
        """Return a visit's batches as positions in the population, int64 ``[steps, size]``, -1 padded."""
        return torch.from_numpy(self.batch_table(client, round))

    def batch_table(self, client: int, round: int) -> np.ndarray:
        """Return what :meth:`batches` does as an array: NumPy is faster than torch on tables this small."""
        shard = self.population.shards[client].numpy()
        return batch_table(self.spec, shard, seed=self.seed, round=round, client=client)

    def batch(self, positions: Tensor, seed: int | None = None, *, fed: bool = False) -> tuple[Tree, Tree]:
        """Gather normalised inputs ``[*positions, ...]`` and targets, likewise, on the task's device.

        Args:
            positions: Of the examples.
            seed: Of what ``data.augment`` draws, and the reading of examples; None augments nothing.
            fed: As in :meth:`ready`.
        """
        batch = self.ready(self.population.examples.read(positions.reshape(-1), seed or 0), seed, fed=fed)
        if positions.ndim == 1:
            return batch
        shaped: tuple[Tree, Tree] = mapped(lambda part: part.view(*positions.shape, *part.shape[1:]), batch)
        return shaped

    def ready(
        self, raw: tuple[Tree, Tree], seed: int | None = None, *, fed: bool = False
    ) -> tuple[Tree, Tree]:
        """Bring a batch to the task's device, normalise its inputs, and give real targets its precision.

        Args:
            raw: Inputs and targets as the data set has them.
            seed: Of what ``data.augment`` draws; None augments nothing.
            fed: A Trainer gets the batch, and calls the hooks that change batches itself.
        """
        data, device = self.population, self.device
        if seed is not None and data.augment is not None:
            raw = data.augment(*raw, seed)
        x, y = mapped(lambda part: part.to(device), raw)
        batch = data.normalize(x), self.typed(y)
        return batch if fed or not self.hooks else self._hooked(batch)

    def _hooked(self, batch: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        """Let the hooks of a LightningDataModule or LightningModule change a batch that is measured."""
        given = self.as_given(batch)
        for hook, owner in self.hooks.items():
            place = (self.device, 0) if hook == "transfer_batch_to_device" else (0,)
            with trained_by(owner, MEASURING), users_code(f"{type(owner).__name__}.{hook} failed"):
                given = getattr(owner, hook)(given, *place)
        return self.parted(given)

    def typed(self, y: Tree) -> Tree:
        """Return targets, of which real numbers have the run's precision."""
        dtype = self.population.normalize.scale.dtype
        return mapped(lambda part: part.to(dtype) if part.is_floating_point() else part, y)


def note_constants(model: nn.Module, names: Iterable[str]) -> None:
    """Note buffers of a model that are constant, and so not sent."""
    exchanged(model)
    _CONSTANTS[model].update(names)


def exchanged(model: nn.Module) -> Params:
    """Return the live tensors of a model that are sent between server and clients (:meth:`Program.state`)."""
    if model not in _CONSTANTS:
        infinite = {n for n, b in model.named_buffers() if b.is_floating_point() and bool(b.isinf().any())}
        _CONSTANTS[model] = {n for n in infinite if not bool(model.get_buffer(n).isnan().any())}
    trainable: Params = {n: p for n, p in model.named_parameters() if p.requires_grad}
    buffers = {n: b for n, b in model.named_buffers() if b.is_floating_point()}
    if not buffers:  # the usual case, in which nothing needs the slow state_dict()
        return trainable
    sent = buffers.keys() & model.state_dict().keys() - _CONSTANTS[model]
    return trainable | {n: b for n, b in buffers.items() if n in sent}
