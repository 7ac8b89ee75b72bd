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
_FIGURES, _WIDTH = 3, 8191  # A prime, so that rows of a table do not fall on one another.


def digest(value: Any) -> str:
    """Hash tensors and plain values, nested in mappings and sequences, to 64 hexadecimal digits.

    Equal bits give equal digits on every device; the order of a mapping and the kind of a sequence do not
    matter, types and shapes of tensors do.
    """
    hashed = hashlib.sha256()
    _feed(hashed, value)
    return hashed.hexdigest()


def rounded_digest(value: Any) -> str:
    """Write a fingerprint by which :func:`flsel.config.fingerprint.alike` knows values of another processor.

    Processors round logarithms and sums differently, so that generated examples and initial weights differ in
    their last bits. The fingerprint therefore holds four parts: the digest; a hash of all that is whole, with
    the shapes of the rest; the scale of the floating-point tensors, as the sum of the logarithms of their
    norms; and three sums of their entries under random signs, each tensor divided by its norm. A change of
    entries by a share of their size changes these sums by about that share.
    """
    floats, whole = list[Tensor](), hashlib.sha256()
    _feed(whole, value, floats)
    drawn = np.unpackbits(np.random.PCG64(0).random_raw(128 * _FIGURES).view(np.uint8))
    signs = 1.0 - 2.0 * drawn.reshape(_FIGURES, -1)[:, :_WIDTH]
    scale, sums = 0.0, np.zeros(_FIGURES)
    for at, tensor in enumerate(floats):
        folded, square = np.zeros(_WIDTH), 0.0
        for part in torch.split(tensor.reshape(-1), 256 * _WIDTH):
            entries = np.nan_to_num(part.double().numpy(), posinf=1.0, neginf=-1.0)
            square += float(entries @ entries)
            folded += np.pad(entries, (0, -len(entries) % _WIDTH)).reshape(-1, _WIDTH).sum(axis=0)
        if square:
            scale += math.log(square) / 2
            sums += signs @ np.roll(folded, at) / math.sqrt(square)
    figures = "".join(f" {figure:.6f}" for figure in (scale, *sums)) if floats else ""
    return f"{digest(value)} {whole.hexdigest()[:16]}{figures}"


def fingerprints(federation: Federation, model: str) -> dict[str, str]:
    """Write down what runs of one seed must share to be compared in pairs.

    Args:
        federation: Clients, holdouts, availability and devices.
        model: Fingerprint of the initial model.

    Returns:
        By name: ``partition``, every client's shard; ``holdouts``, the server's, validation and test sets;
        ``availability``, the available clients of each round; ``model``, the initial parameters; with
        simulated devices also ``devices``, their table. Labels enter whole, inputs by a sample of at
        most 1,024.
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
        devices = {"devices": rounded_digest([clock.seed, *columns])}
    return {
        "partition": rounded_digest([_sample(population.examples), list(population.shards)]),
        "holdouts": rounded_digest(held),
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


def _feed(hashed: hashlib._Hash, value: Any, floats: list[Tensor] | None = None) -> None:
    """Feed a hash with a nested value; of floating-point tensors only the shapes if they are collected."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        hashed.update(f"{value.dtype}{tuple(value.shape)}".encode())
        if floats is not None and value.is_floating_point():
            floats.append(value)
        elif value.numel():  # An empty one may have strides that no view allows.
            hashed.update(value.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, Mapping):
        hashed.update(f"mapping{len(value)}".encode())
        for key in sorted(value, key=repr):
            _feed(hashed, key)
            _feed(hashed, value[key], floats)
    elif isinstance(value, list | tuple):
        hashed.update(f"sequence{len(value)}".encode())
        for item in value:
            _feed(hashed, item, floats)
    elif isinstance(value, set | frozenset):
        _feed(hashed, sorted(value, key=repr))
    else:
        text = repr(value).encode()
        hashed.update(f"{type(value).__name__}{len(text)}:".encode() + text)
