"""Hold examples out and deal the rest to clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from flsel.data.population import Examples, FederatedData, Population, Source
from flsel.errors import UserError
from flsel.rng import generator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from flsel.data.data_config import DataConfig


class Role(IntEnum):
    """What an example of the training set is used for."""

    SERVER = 0
    VALIDATION = 1
    TEST = 2
    TRAIN = 3


Deal = Callable[[np.ndarray, np.random.Generator], "list[np.ndarray]"]
"""(labels int64 [R], rng) -> for each client the positions of its examples in ``labels``, int64 [n_k]."""


def federate(
    source: Source, config: DataConfig, *, deal: Deal | None, seed: int, clients: int | None = None
) -> FederatedData:
    """Hold out the server's, the validation and, if need be, the test examples; deal the rest.

    Holdouts are shares of the training set, uniformly at random. With natural clients every client gives its
    share, rounded so that the totals are right, and keeps at least one example. The draws come from
    ``generator(seed, "holdout")``, the partition's from ``generator(seed, "partition")``, so two partitions
    under one seed have the same holdouts. The training inputs are not copied: shards point into them.

    Args:
        source: The dataset.
        config: The shares; 0 gives None for server and validation.
        deal: Partition of the remaining examples, or None for the dataset's natural clients.
        seed: The run's seed.
        clients: With natural clients: draw so many by the seed. Others are left out of the holdouts too, but
            not out of a test or validation set that the dataset brings.

    Returns:
        Clients and disjoint holdouts.

    Raises:
        UserError: If there are no natural clients or fewer than ``clients``, a share leaves nothing, there
            would be no test set, a client gets no examples, or the partition deals an example twice or one
            that does not exist.
    """
    chosen = nobodys = np.arange(0)
    if deal is None:
        nobodys = np.flatnonzero(_owner(source) == -1)
        chosen = _natural_clients(source, clients, seed)
        source = replace(source, owner=_renumbered(_owner(source), chosen))
        usable = np.flatnonzero(_owner(source) >= 0)
    else:
        usable = np.arange(len(source.train))
    held_from, roles = _roles(source, _shares(source, config), (usable, nobodys), generator(seed, "holdout"))
    pool = np.setdiff1d(usable, held_from[roles != Role.TRAIN], assume_unique=True)
    if deal is None:
        dealt = natural_shards(_owner(source)[pool], len(chosen))
    else:
        dealt = deal(labels_of(source.train)[pool], generator(seed, "partition"))
    train, shards = source.train, _checked(dealt, pool)
    known = None
    if deal is None and source.true_models is not None:
        known = partial(_models_of, source.true_models, chosen)
    shards, held_of_clients = _own_tests(shards, config.client_test, seed)
    sizes = [len(part) for part in held_of_clients]
    own_tests = torch.split(torch.arange(sum(sizes)), sizes) if sizes else ()
    population = Population(
        train.x, train.y, shards, source.num_classes, source.normalize, known, train.groups, source.outputs,
        source.form, hooks=source.hooks,
    )  # fmt: skip

    def held(role: Role) -> Examples:
        return train.take(torch.from_numpy(held_from[roles == role]))

    validation = held(Role.VALIDATION) if source.validation is None else source.validation
    return FederatedData(
        population=population,
        server=held(Role.SERVER) if config.server > 0 else None,
        validation=validation if config.validation > 0 else None,
        test=held(Role.TEST) if source.test is None else source.test,
        name=source.name,
        client_tests=own_tests or (_client_tests(source.test_owner, chosen) if deal is None else None),
        own_test=train.take(torch.cat(held_of_clients)) if held_of_clients else None,
    )


def _own_tests(
    shards: tuple[Tensor, ...], share: float, seed: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Hold a share of each client's examples out, at random: what is left, and what is held out."""
    if share == 0:
        return shards, ()
    sizes = torch.tensor([len(shard) for shard in shards])
    owner = torch.repeat_interleave(torch.arange(len(shards)), sizes).numpy()
    held = torch.from_numpy(hold_out(owner, {Role.TEST: share}, generator(seed, "client_test")) == Role.TEST)
    parts = [
        (shard[~mine], shard[mine])
        for shard, mine in zip(shards, torch.split(held, sizes.tolist()), strict=True)
    ]
    return tuple(left for left, _ in parts), tuple(own for _, own in parts)


def _client_tests(owner: np.ndarray | None, chosen: np.ndarray) -> tuple[Tensor, ...] | None:
    """Return the positions of each client's own test examples."""
    if owner is None:
        return None
    numbers = _renumbered(owner, chosen)
    owned = np.flatnonzero(numbers >= 0)
    shards = natural_shards(numbers[owned], len(chosen))
    return tuple(torch.from_numpy(owned[shard]) for shard in shards) if len(owned) else None


def natural_shards(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """Group positions by their owner.

    Args:
        owner: Client of every example, int64 ``[R]`` in ``0..clients-1``.
        clients: N.

    Returns:
        For each client the positions of its examples, ascending, int64 ``[n_k]``.
    """
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.cumsum(np.bincount(owner, minlength=clients))[:-1])


def owners_of(dealt: Sequence[np.ndarray], examples: int) -> np.ndarray:
    """Return the client of every example, int64 ``[S]``, -1 for nobody.

    Args:
        dealt: For each client the positions of its examples in ``0..examples-1``.
        examples: S.

    Raises:
        UserError: If a client gets no examples, or an example is dealt twice or does not exist.
    """
    owner = np.full(examples, -1, dtype=np.int64)
    for client, shard in enumerate(_checked(dealt, np.arange(examples))):
        owner[shard.numpy()] = client
    return owner


def labels_of(examples: Examples) -> np.ndarray:
    """Return what partitions and holdouts read as labels, int64 ``[S]``; zeros where there is nothing."""
    labels = examples.labels
    return np.zeros(len(examples), dtype=np.int64) if labels is None else labels.cpu().numpy()


def _owner(source: Source) -> np.ndarray:
    if source.owner is None:
        raise UserError(f"partition must not be natural: {source.name} has no natural clients.")
    return source.owner


def _natural_clients(source: Source, clients: int | None, seed: int) -> np.ndarray:
    """Return the natural clients of a run, int64 ``[N]``, ascending: all, or so many drawn by the seed."""
    owners = int(_owner(source).max()) + 1
    if clients is not None and not 1 <= clients <= owners:
        raise UserError(
            f"clients must be in 1..{owners}, the natural clients of {source.name}, got {clients}."
        )
    if clients in (None, owners):
        return np.arange(owners)
    return np.asarray(np.sort(generator(seed, "clients").choice(owners, clients, replace=False)))


def _renumbered(owner: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Number the chosen clients from 0, in their order; -1 stands for all others and for nobody."""
    most = max(int(owner.max()), int(chosen.max()))
    numbers = np.full(most + 2, -1, dtype=np.int64)  # the last one for -1
    numbers[chosen] = np.arange(len(chosen))
    return np.asarray(numbers[owner])


def _models_of(models: Callable[[int], np.ndarray], chosen: np.ndarray) -> np.ndarray:
    return np.asarray(models(int(chosen.max()) + 1)[chosen])


def _shares(source: Source, config: DataConfig) -> dict[Role, float]:
    if source.test is None and config.test == 0:
        raise UserError(f"data.test must be above 0: {source.name} brings no test set.")
    return {
        Role.TEST: config.test if source.test is None else 0.0,
        Role.VALIDATION: config.validation if source.validation is None else 0.0,
        Role.SERVER: config.server,
    }


def _roles(
    source: Source,
    shares: dict[Role, float],
    examples: tuple[np.ndarray, np.ndarray],
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the examples from which holdouts are taken, int64 ``[n]``, and the role of each.

    Args:
        source: The dataset.
        shares: Shares of the clients' examples.
        examples: Those of the clients, and those of nobody, from which holdouts are taken if there are enough
            of each label.
        rng: Source of the draws.
    """
    usable, nobodys = examples
    owner = np.zeros(len(source.train), dtype=np.int64) if source.owner is None else source.owner
    owner = owner - min(int(owner.min()), 0)
    labels = labels_of(source.train)
    alike = _with_mix(labels[nobodys], labels[usable], sum(shares.values()), rng)
    if len(alike):
        shares = {role: share * len(usable) / len(alike) for role, share in shares.items()}
        usable, owner = nobodys[alike], labels
    roles = hold_out(owner[usable], shares, rng)
    for role, share in shares.items():
        if share > 0 and not (roles == role).any():
            raise UserError(
                f"data.{role.name.lower()} = {share:g} of the {len(usable)} training examples of "
                f"{source.name} leaves none; raise it."
            )
    return usable, roles


def _with_mix(labels: np.ndarray, wanted: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draw examples that have the label mix of others, as many as possible.

    Args:
        labels: Labels of the examples to draw from, int64 ``[S]``.
        wanted: Labels of the others, int64 ``[R]``.
        share: At least this share of R is needed of each label.
        rng: Source of the draws.

    Returns:
        Positions in ``labels``, int64, ascending; none if a label has too few examples.
    """
    classes = 1 + max(labels.max(initial=0), wanted.max(initial=0))
    have, want = (np.bincount(part, minlength=classes) for part in (labels, wanted))
    factor = min(1.0, float((have[want > 0] / want[want > 0]).min()))
    if factor <= share:
        return np.arange(0)
    order = np.lexsort((rng.random(len(labels)), labels))
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(have) - have, have)
    kept = rank < np.repeat(np.floor(factor * want), have)
    return np.asarray(np.sort(order[kept]))


def hold_out(owner: np.ndarray, shares: dict[Role, float], rng: np.random.Generator) -> np.ndarray:
    """Give examples roles, each role its share of every client, at random within the client.

    Args:
        owner: Client of every example, int64 ``[S]``, >= 0.
        shares: Share of each role, in [0, 1); training takes the rest.
        rng: Source of the draws.

    Returns:
        The :class:`Role` of every example, int8 ``[S]``. A role's total is its share of S, rounded, unless
        clients are too small to give it: each client keeps one training example.
    """
    sizes = np.bincount(owner)
    order = np.lexsort((rng.random(len(owner)), owner))
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    roles = np.full(len(owner), Role.TRAIN, dtype=np.int8)
    taken = np.zeros_like(sizes)
    for role, share in shares.items():
        # Rounding the running total, not each client's share, lets clients of ten examples give 5 %.
        wanted = np.diff(np.floor(np.cumsum(share * sizes) + 0.5).astype(np.int64), prepend=0)
        until = taken + np.clip(wanted, 0, np.maximum(sizes - 1 - taken, 0))
        chosen = (rank >= np.repeat(taken, sizes)) & (rank < np.repeat(until, sizes))
        roles[order[chosen]] = role
        taken = until
    return roles


def _checked(shards: Sequence[np.ndarray], pool: np.ndarray) -> tuple[Tensor, ...]:
    """Check the positions dealt and turn them into positions of the training set."""
    sizes = [len(shard) for shard in shards]
    if 0 in sizes or not sizes:
        raise UserError(
            f"client {sizes.index(0) if sizes else 0} has no examples after the partition ({sizes.count(0)} "
            f"of {len(sizes)} clients are empty); lower clients, choose a less skewed partition, or number "
            "the owners of examples 0, 1, 2, ... without gaps."
        )
    dealt = np.concatenate(shards)
    if dealt.dtype.kind not in "iu" or dealt.min() < 0 or dealt.max() >= len(pool):
        raise UserError(f"the partition must deal positions in 0..{len(pool) - 1}, got others.")
    times = np.bincount(dealt)
    if times.max() > 1:
        raise UserError(
            f"the partition deals example {int(times.argmax())} to clients {int(times.max())} times."
        )
    return torch.split(torch.from_numpy(pool[dealt]), sizes)
