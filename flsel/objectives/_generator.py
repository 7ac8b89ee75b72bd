"""FedGen's generator of features as a function of its tensors, its losses, and a step of Adam.

The network is [noise, one-hot label] -> linear -> batch normalisation -> ReLU -> linear. Dimensions: B
examples, E numbers of noise, C labels, H hidden units, L features, K clients.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.adam import adam

from flsel.params import Params, is_running

BETAS, EPS = (0.9, 0.999), 1e-8


def sizes(noise: int, classes: int, hidden: int, width: int) -> int:
    """Count the numbers of a generator, running statistics included."""
    return (noise + classes + 1) * hidden + 4 * hidden + (hidden + 1) * width


def fresh(noise: int, classes: int, hidden: int, like: Tensor) -> Params:
    """Draw a generator from torch's global generator, with the layers' usual rules.

    Args:
        noise: E.
        classes: C.
        hidden: H.
        like: The output layer's weight, ``[C, L]``; the tensors get its device and precision.
    """
    net = nn.Sequential(
        OrderedDict(
            hidden=nn.Linear(noise + classes, hidden),
            norm=nn.BatchNorm1d(hidden),
            out=nn.Linear(hidden, like.shape[1]),
        )
    )
    return {name: value.to(like) for name, value in net.state_dict().items() if value.is_floating_point()}


def one_hot(y: Tensor, classes: int, like: Tensor) -> Tensor:
    """Return ``[B, C]`` with ones at labels ``[B]``, in the precision of ``like``; works inside ``vmap``."""
    return (y[:, None] == torch.arange(classes, device=y.device)).to(like.dtype)


def features(net: Params, noise: Tensor, labels: Tensor, *, training: bool = False) -> Tensor:
    """Return features ``[B, L]``.

    Args:
        net: The generator.
        noise: ``[B, E]``.
        labels: One-hot, ``[B, C]``.
        training: Normalise by the batch, whose statistics enter the running ones in place.
    """
    inputs = torch.cat([noise, labels], dim=1)
    hidden = functional.linear(inputs, net["hidden.weight"], net["hidden.bias"])
    mean, var = net["norm.running_mean"], net["norm.running_var"]
    if training:
        hidden = functional.batch_norm(hidden, mean, var, net["norm.weight"], net["norm.bias"], training=True)
    else:
        hidden = (hidden - mean) * ((var + 1e-5).rsqrt() * net["norm.weight"]) + net["norm.bias"]
    return functional.linear(functional.relu(hidden), net["out.weight"], net["out.bias"])


def spread(noise: Tensor, z: Tensor) -> Tensor:
    """Return exp(-mean over all pairs of (mean squared distance of noise) (mean distance of features)).

    Pairs of an example with itself count, as in the reference code.

    Args:
        noise: ``[B, E]``.
        z: Features ``[B, L]``.
    """
    apart = (noise[:, None] - noise[None]).square().mean(dim=2)
    return (-(apart * (z[:, None] - z[None]).abs().mean(dim=2)).mean()).exp()


def shares(counts: Tensor) -> Tensor:
    """Return how much of each label is whose, float64 ``[K, C]``: columns sum to one.

    Args:
        counts: Label counts ``[K, C]``, to which one is added, so that each label has a client.
    """
    more = counts.double() + 1.0
    return more / more.sum(dim=0)


def of_mean_logits(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy of the clients' mean logits (Eq. 4).

    Args:
        logits: ``[K, B, C]``.
        y: Labels ``[B]``.
    """
    return functional.cross_entropy(logits.mean(dim=0), y)


def of_each(logits: Tensor, y: Tensor, shared: Tensor) -> Tensor:
    """Return the sum over clients of their mean cross-entropies, weighed by their shares of the labels.

    Args:
        logits: ``[K, B, C]``.
        y: Labels ``[B]``.
        shared: ``[K, C]``, see :func:`shares`.
    """
    every = functional.cross_entropy(logits.flatten(0, 1), y.repeat(len(logits)), reduction="none")
    return (every.view(len(logits), -1) * shared.to(logits)[:, y]).mean(dim=1).sum()


def still(net: Params) -> dict[str, Params]:
    """Return the state of Adam before its first step."""
    names = [name for name in net if not is_running(name)]
    count = torch.zeros((), device=net[names[0]].device)
    return {
        "mean": {name: torch.zeros_like(net[name]) for name in names},
        "square": {name: torch.zeros_like(net[name]) for name in names},
        "steps": {name: count.clone() for name in names},
    }


def descend(net: Params, state: dict[str, Params], grads: Params, lr: float, weight_decay: float) -> None:
    """Take a step of Adam, in place.

    Args:
        net: The generator.
        state: What :func:`still` returned.
        grads: Gradients of its parameters.
        lr: Learning rate.
        weight_decay: Factor on the parameters that is added to their gradients.
    """
    adam(
        [net[name] for name in grads],
        [*grads.values()],
        [state["mean"][name] for name in grads],
        [state["square"][name] for name in grads],
        [],
        [state["steps"][name] for name in grads],
        amsgrad=False,
        beta1=BETAS[0],
        beta2=BETAS[1],
        lr=lr,
        weight_decay=weight_decay,
        eps=EPS,
        maximize=False,
    )
