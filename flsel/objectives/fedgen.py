"""FedGen: clients also train their output layer on features that a small generator makes of labels.

Z. Zhu, J. Hong, J. Zhou: "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021,
Eqs. (4), (5), Algorithm 1; code: zhuangdizhu/FedGen@dd5807c. The server trains the generator G(y, noise) so
that the participants' output layers together classify G(y, noise) as y; there is no proxy data.

**Deviations.** The paper and its code are different methods. The defaults are the paper's where the paper
gives them. ``configs/papers/fedgen/mnist_code.yaml`` has the code's settings, with a ``weight`` of 10 that
decays.

- The supplement, which defines the diversity loss, was not available. The loss is that of the code.
- Clients train on generated features from round 1, as in the code (``start``), because in round 0 the
  generator is random. The paper's algorithm starts in round 0.
- The code weighs a client's cross-entropy on the server by its share of the label, but a broadcast replaces
  these weights by their mean. ``ensemble: losses`` weighs each example by the share of its own label, as
  intended.
- With ``prior: uniform`` clients draw from all labels of the dataset. In the code they draw from the labels
  that some client has.
- The code multiplies ``weight`` by the ratio of generated to own examples in a batch. In its settings this
  ratio is one.
- The code's factors on losses do not fall below 0.0001, which takes 570 rounds. Here they do.
- The paper averages models equally, as ``Uniform`` with its ``weights: equal``. The code averages them by
  data. The code does not average the running statistics of batch normalisation, and its first version did not
  shuffle.
- Simulated devices need time to receive the generator and to send label counts. They need none for the
  generated features, which cost a client one or two matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from flsel.arguments import Range, Tunable
from flsel.errors import DivergedError
from flsel.metrics import Cost
from flsel.objectives import _generator
from flsel.objectives._generator import one_hot
from flsel.objectives.objective import LocalUpdates, Objective
from flsel.params import Params, is_running

_NUMBER = 8  # Bytes of a label's probability.


@final
@dataclass(eq=False)
class FedGen(Objective):
    """Add to a batch's loss the mean cross-entropy of the output layer on generated features.

    The generator, its optimizer and the label distribution are on checkpoints; clients keep nothing. The
    model must end in a linear layer. Down goes the generator with C numbers, up go C label counts.

    Attributes:
        noise: Dimension of the noise that the generator takes (that of epsilon).
        hidden: Hidden units of the generator.
        weight: Factor on the loss of generated features; the paper's is 1, the code's 10.
        latent: Factor on a term that only the code has, where it is 10: the divergence of the outputs on the
            client's own examples from those on features generated for their labels, KL(h(G(y)), h(x)).
        decay: Factor on ``weight`` and ``latent`` after every round; the code's is 0.98.
        batch: Generated features in a local step, and examples in a step of the generator.
        start: First round whose clients train on generated features.
        steps: Steps of the generator's optimizer (Adam) per round.
        lr: Learning rate of the generator.
        lr_decay: Factor on the generator's learning rate after every round; the code's is 0.98.
        weight_decay: Weight decay of the generator.
        diversity: Factor on the loss that keeps generated features apart.
        ensemble: The generator's loss: the cross-entropy of the clients' mean ``logits`` (the paper's), or
            the sum of the clients' own ``losses``, weighted by their shares of each label (the code's).
        prior: Distribution of generated labels: ``counts`` is that of the last participants' labels (the
            paper's). ``uniform`` is uniform over all labels, and on the server over those of the participants
            (the code's).
        distribution: Distribution of the noise: standard ``normal`` (the paper's) or ``uniform`` in [0, 1)
            (the code's).
    """

    noise: Annotated[int, Range(1)] = 32
    hidden: Annotated[int, Range(1)] = 256
    weight: Annotated[float, Range(0), Tunable(0.1, 20.0, log=True)] = 1.0
    latent: Annotated[float, Range(0)] = 0.0
    decay: Annotated[float, Range(0, 1), Tunable(0.95, 1.0)] = 1.0
    batch: Annotated[int, Range(2), Tunable(8, 128, log=True)] = 32
    start: Annotated[int, Range(0)] = 1
    steps: Annotated[int, Range(0), Tunable(5, 200, log=True)] = 50
    lr: Annotated[float, Range(above=0), Tunable(1e-5, 1e-2, log=True)] = 3e-4
    lr_decay: Annotated[float, Range(0, 1)] = 1.0
    weight_decay: Annotated[float, Range(0)] = 0.01
    diversity: Annotated[float, Range(0)] = 1.0
    ensemble: Literal["logits", "losses"] = "logits"
    prior: Literal["counts", "uniform"] = "counts"
    distribution: Literal["normal", "uniform"] = "normal"

    def cost(self, params: Params) -> Cost:
        """Return what goes beside the model: the generator and label probabilities down, label counts up."""
        classes, width = self._layer(params).shape
        numbers = _generator.sizes(self.noise, classes, self.hidden, width)
        size = self._layer(params).element_size()
        return Cost(bytes_down=numbers * size + _NUMBER * classes, scalars_up=classes)

    def reset(self, params: Params, clients: int) -> None:
        """Draw a generator; all labels are equally likely at first."""
        layer = self._layer(params)
        self.generator_ = _generator.fresh(self.noise, len(layer), self.hidden, layer)
        self.adam_ = _generator.still(self.generator_)
        self.prior_ = torch.full_like(layer[:, 0], 1.0 / len(layer), dtype=torch.float64)

    def draw(self, steps: int, size: int, round: int, rng: np.random.Generator) -> Params:
        """Return noise and labels of ``batch`` generated features a step, and noise for the own examples."""
        fade, drawn = self.decay**round, dict[str, Tensor]()
        if round < self.start:
            return drawn
        if self.weight > 0:
            labels = rng.choice(len(self.prior_), size=(steps, self.batch), p=self._probabilities())
            drawn["noise"] = self._noise(rng, (steps, self.batch, self.noise))
            drawn["labels"] = torch.from_numpy(labels.astype(np.int64))
            drawn["weight"] = torch.full((steps,), self.weight * fade, dtype=torch.float64)
        if self.latent > 0:
            drawn["own_noise"] = self._noise(rng, (steps, size, self.noise))
            drawn["latent"] = torch.full((steps,), self.latent * fade, dtype=torch.float64)
        return drawn

    def generated(
        self,
        head: Callable[[Tensor], Tensor],
        own: Tensor,
        batch: tuple[Tensor, Tensor],
        drawn: Params,
    ) -> Tensor:
        """Return the second term of Eq. (5), and with ``latent`` the code's third."""
        (y, weights), classes = batch, len(self.prior_)
        total = own.new_zeros(())
        if "noise" in drawn:
            labels = one_hot(drawn["labels"], classes, own)
            z = _generator.features(self.generator_, drawn["noise"], labels)
            scores = functional.log_softmax(head(z).to(own.dtype), dim=1)
            total = total - drawn["weight"] * (scores * labels).sum() / self.batch
        if "own_noise" in drawn:
            z = _generator.features(self.generator_, drawn["own_noise"][: len(y)], one_hot(y, classes, own))
            target = functional.log_softmax(head(z).detach().to(own.dtype), dim=1)
            scores = functional.log_softmax(head(own).to(own.dtype), dim=1)
            apart = (target.exp() * (target - scores)).sum(dim=1)
            total = total + drawn["latent"] * (apart * weights).sum()
        return total

    def observe(self, updates: LocalUpdates) -> None:
        """Take over the participants' label counts, and train the generator on their output layers.

        Raises:
            DivergedError: If the generator is not finite any more.
        """
        counts = updates.labels()
        if counts.sum() == 0:
            return
        if self.prior == "counts":
            self.prior_ = (counts.sum(dim=0) / counts.sum()).double().to(self.prior_.device)
        seen = (counts.sum(dim=0) > 0).double()
        labels = self._probabilities() if self.prior == "counts" else (seen / seen.sum()).numpy()
        heads = self._uploaded(updates)
        lr = self.lr * self.lr_decay**updates.round
        for _ in range(self.steps):
            y = torch.from_numpy(updates.rng.choice(len(labels), size=self.batch, p=labels).astype(np.int64))
            noise = self._noise(updates.rng, (self.batch, self.noise))
            self._learn(heads, y, noise, (_generator.shares(counts), lr))
        if not all(bool(value.isfinite().all()) for value in self.generator_.values()):
            raise DivergedError(
                f"FedGen's generator is not finite any more after round {updates.round}; lower objective.lr, "
                f"got {self.lr:g}, or the learning rate of local.optimizer."
            )

    def _learn(
        self, heads: tuple[Tensor, Tensor], y: Tensor, noise: Tensor, rates: tuple[Tensor, float]
    ) -> None:
        """Take a step of the generator's optimizer on a batch.

        Args:
            heads: Weights ``[K, C, L]`` and biases ``[K, 1, C]`` of the participants' output layers.
            y: Labels ``[B]``.
            noise: ``[B, E]``.
            rates: Shares of labels ``[K, C]``, and the learning rate.
        """
        weight, bias = heads
        y, noise, shared = y.to(weight.device), noise.to(weight), rates[0].to(weight.device)
        net = {
            name: value.clone() if is_running(name) else value.detach().requires_grad_()
            for name, value in self.generator_.items()
        }
        leaves = {name: value for name, value in net.items() if value.requires_grad}
        with torch.enable_grad():
            z = _generator.features(net, noise, one_hot(y, weight.shape[1], noise), training=True)
            logits = z @ weight.transpose(1, 2) + bias
            if self.ensemble == "logits":
                loss = _generator.of_mean_logits(logits, y)
            else:
                loss = _generator.of_each(logits, y, shared)
            if self.diversity > 0:
                loss = loss + self.diversity * _generator.spread(noise, z)
            grads = torch.autograd.grad(loss, [*leaves.values()])
        with torch.no_grad():
            moved = {name: value.detach() for name, value in net.items()}
            found = dict(zip(leaves, grads, strict=True))
            _generator.descend(moved, self.adam_, found, rates[1], self.weight_decay)
        self.generator_ = moved

    def _uploaded(self, updates: LocalUpdates) -> tuple[Tensor, Tensor]:
        """Return the participants' output layers, weights ``[K, C, L]`` and biases ``[K, 1, C]``."""
        assert self.head is not None
        weight, bias = (
            None if name is None else (updates.starts[name] + updates.deltas[name]).detach()
            for name in self.head
        )
        assert weight is not None
        return weight, weight.new_zeros(weight.shape[:2])[:, None] if bias is None else bias[:, None]

    def _probabilities(self) -> np.ndarray:
        """Return the labels' probabilities, float64 ``[C]``, with a sum of one to the last digit."""
        found: np.ndarray = (self.prior_ / self.prior_.sum()).cpu().numpy()
        return found

    def _noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
        normal = self.distribution == "normal"
        draw = rng.standard_normal if normal else rng.random
        return torch.from_numpy(draw(shape, dtype=np.float32))

    def _layer(self, params: Params) -> Tensor:
        """Return the output layer's weight, ``[C, L]``."""
        assert self.head is not None
        return params[self.head[0]]
