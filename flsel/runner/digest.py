"""Hashes of nested values: a checkpoint's checksum, and the fingerprints by which runs are paired."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from flsel.data.trees import tensors
from flsel.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

    from flsel.data.population import Examples, FederatedData
    from flsel.engine.federation import Federation

_SAMPLE = 1024  # Inputs that stand for a dataset: hashing all of them would take seconds.


def digest(value: Any) -> str:
    """Hash tensors and plain values, nested in mappings and sequences, to 64 hexadecimal digits.

    Equal bits give equal digits on every device; the order of a mapping and the kind of a sequence do not
    matter, types and shapes of tensors do.
    """
    hashed = hashlib.sha256()
    _feed(hashed, value)
    return hashed.hexdigest()


def fingerprints(federation: Federation, model: str) -> dict[str, str]:
    """Hash what runs of one seed must share to be compared in pairs.

    Args:
        federation: Clients, holdouts, availability and devices.
        model: Digest of the initial model.

    Returns:
        By name: ``partition``, every client's shard; ``holdouts``, the server's, validation and test sets;
        ``availability``, the available clients of each round; ``model``, the initial parameters; with
        simulated devices also ``devices``, their table. Labels enter
        whole, inputs by a sample of at most 1,024.
    """
    data = federation.data
    population = data.population
    trace = hashlib.sha256(f"{federation.rounds} rounds, {len(population)} clients".encode())
    if federation.record is not None:
        trace.update(federation.record.described())
    for round in range(0 if federation.in_seconds else federation.rounds):
        trace.update(np.packbits(federation.available(round).numpy()).tobytes())
    held = [None if e is None else _sample(e) for e in _held_out(data)]
    clock = federation.clock
    devices = {}
    if clock is not None:
        # The seed enters by the jitter of visits; that of links only where there is some.
        columns = [
            _tensor(column)
            for name, column in vars(clock.table).items()
            if name not in ("down_jitter", "up_jitter") or np.any(column)
        ]
        devices = {"devices": digest([clock.seed, *columns])}
    return {
        "partition": digest([_sample(population.examples), list(population.shards)]),
        "holdouts": digest(held),
        "availability": trace.hexdigest(),
        "model": model,
        **devices,
    }


def _held_out(data: FederatedData) -> list[Examples | None]:
    more = [] if data.own_test is None else [data.own_test]
    return [data.server, data.validation, data.test, *more]


def _tensor(column: np.ndarray | float) -> Tensor:
    return torch.from_numpy(np.array(column, dtype=np.float64))


def data_digest(data: FederatedData) -> dict[str, Any]:
    """Sum up a run's training and evaluation data, for :func:`check_data` when the run is resumed.

    Labels and shards enter whole and exactly; inputs by their mean and deviation, since another machine may
    round differently when it makes them.
    """
    population = data.population
    held = [part for part in _held_out(data) if part is not None]
    parts = [population.examples, *held]
    labels = [population.y, torch.cat(list(population.shards)), population.sizes, *(part.y for part in held)]
    if population.groups is not None:
        labels.append(population.groups)
    inputs = [x.float() for part in parts for x in tensors(_sample(part)[1])]
    moments = [float(m) for x in inputs for m in (x.mean(), x.std(correction=0))]
    return {"labels": digest(labels), "moments": moments}


def check_data(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume a run with other data than it began with.

    Args:
        before: What :func:`data_digest` returned then; empty if it was not called.
        now: What it returns.
        folder: The run's.

    Raises:
        UserError: If they differ.
    """
    moments = [*zip(before.get("moments", ()), now["moments"], strict=False)]
    alike = all(math.isclose(*pair, rel_tol=1e-3, abs_tol=1e-6) for pair in moments)
    if before and (before.get("labels") != now["labels"] or not alike):
        raise UserError(
            f"run {folder} began with other data than it would go on with: restore the dataset (a function "
            "of your own must return the same whenever it is called), or start a new run with --config."
        )


def _sample(examples: Examples) -> list[Any]:
    size = len(examples)
    where = torch.linspace(0, max(size - 1, 0), min(size, _SAMPLE)).long()
    x = examples.read(where)[0]
    alone = isinstance(examples.x, Tensor)
    shapes = list(examples.x.shape) if alone else [list(part.shape) for part in tensors(examples.x)]
    return [shapes, x, examples.y, *([] if examples.groups is None else [examples.groups])]


def _feed(hashed: hashlib._Hash, value: Any) -> None:
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        hashed.update(f"{value.dtype}{tuple(value.shape)}".encode())
        if value.numel():  # An empty one may have strides that no view allows.
            hashed.update(value.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, Mapping):
        hashed.update(f"mapping{len(value)}".encode())
        for key in sorted(value, key=repr):
            _feed(hashed, key)
            _feed(hashed, value[key])
    elif isinstance(value, list | tuple):
        hashed.update(f"sequence{len(value)}".encode())
        for item in value:
            _feed(hashed, item)
    elif isinstance(value, set | frozenset):
        _feed(hashed, sorted(value, key=repr))
    else:
        text = repr(value).encode()
        hashed.update(f"{type(value).__name__}{len(text)}:".encode() + text)
