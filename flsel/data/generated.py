"""Small generated data sets of the shipped configs: plays to spell, loads to forecast, sentences of tokens.

Each client's examples have a generator of their own, so they do not depend on the other clients.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from flsel.data.array_files import load_leaf
from flsel.data.population import Source
from flsel.rng import generator

_LOG = logging.getLogger("flsel")
_PHRASES = (
    ("good my lord", "sweet lady", "brave captain", "gentle friend", "honest nurse", "noble king"),
    ("the night", "thy heart", "this crown", "our army", "that letter", "my daughter"),
    ("doth sleep", "must die", "is come", "shall speak", "hath fled", "will answer"),
    ("in the tower", "before dawn", "beyond the sea", "with sorrow", "for love", "at thy gate"),
)
_ROLES, _WINDOW, _STRIDE = 20, 20, 3
_DAY = 24


def load_plays(folder: Path, *, required: bool) -> Source:
    """Load LEAF's Shakespeare, or where it is absent a generated play, which the log says.

    Args:
        folder: Where ``train/*.json`` and ``test/*.json`` are.
        required: Whether a folder that is absent is an error.

    Raises:
        UserError: If files are malformed, or required and absent.
    """
    if required or folder.is_dir():
        return load_leaf(folder)
    _LOG.warning(
        "shakespeare: there is no folder %s with LEAF's train/*.json, so a generated play of %d roles takes "
        "its place", folder, _ROLES,
    )  # fmt: skip
    with TemporaryDirectory() as made:
        write_play(Path(made))
        return replace(load_leaf(Path(made)), name="generated_play")


def write_play(folder: Path) -> None:
    """Write a play as LEAF does: ``train/play.json`` and ``test/play.json``.

    Each client is a role with phrases that it prefers. An example is 20 characters and the one that follows.
    The last fifth of a role's examples is for testing.
    """
    roles = {f"role {number:02d}": _examples(_speech(number)) for number in range(_ROLES)}
    for part, test in (("train", False), ("test", True)):
        data = {
            role: {"x": [x for x, _ in chosen], "y": [y for _, y in chosen]}
            for role, pairs in roles.items()
            for chosen in [pairs[len(pairs) * 4 // 5 :] if test else pairs[: len(pairs) * 4 // 5]]
        }
        sizes = [len(examples["y"]) for examples in data.values()]
        content = {"users": [*data], "num_samples": sizes, "user_data": data}
        (folder / part).mkdir(parents=True)
        (folder / part / "play.json").write_text(json.dumps(content))


def _speech(role: int) -> str:
    rng = generator(0, "play", role)
    habits = [rng.dirichlet(np.full(len(choices), 0.5)) for choices in _PHRASES]

    def line() -> str:
        who, *rest = (rng.choice(choices, p=habit) for choices, habit in zip(_PHRASES, habits, strict=True))
        return f"{who}, {' '.join(rest)}."

    return " ".join(line() for _ in range(24 + int(rng.integers(24))))


def _examples(text: str) -> list[tuple[str, str]]:
    starts = range(0, len(text) - _WINDOW, _STRIDE)
    return [(text[at : at + _WINDOW], text[at + _WINDOW]) for at in starts]


def households(clients: int = 30, days: int = 14) -> tuple[Dataset[Any], Dataset[Any]]:
    """Generate hourly electric loads: from the last 24 hours, a household's load in the next one.

    Args:
        clients: Households, each a client with a level, a time of its peak and noise of its own.
        days: Days of each. The last two are for testing.

    Returns:
        Training and test set: inputs float32 ``[24]``, targets float32, both in kW.
    """
    parts: tuple[list[Any], list[Any]] = ([], [])
    for client in range(clients):
        rng = generator(0, "households", client)
        level, peak = rng.lognormal(0, 0.4), rng.normal(19, 3)
        hours = np.arange(days * _DAY)
        shape = (
            1 + 0.8 * np.cos((hours - peak) * 2 * np.pi / _DAY) + 0.4 * np.cos((hours - 8) * 4 * np.pi / _DAY)
        )
        noise = np.convolve(rng.normal(0, 0.2, len(hours)), [1, 0.6, 0.3], mode="same")
        load = (level * np.maximum(shape + noise, 0.1)).astype(np.float32)
        x = np.lib.stride_tricks.sliding_window_view(load[:-1], _DAY)
        y = load[_DAY:]
        cut = len(y) - 2 * _DAY
        for part, rows in zip(parts, (slice(cut), slice(cut, None)), strict=True):
            part.append((x[rows], y[rows], np.full(len(y[rows]), client)))
    return _owned(parts[0]), _owned(parts[1])


def _owned(parts: list[Any]) -> Dataset[Any]:
    x, y, owner = (np.concatenate(column) for column in zip(*parts, strict=True))
    made = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    made.owner = owner  # type: ignore[attr-defined]
    return made


class Sentences(Dataset[Any]):
    """Sentences of token ids as causal language models of Hugging Face take them.

    An example has ``input_ids``, ``attention_mask`` and ``labels``, int64 ``[16]``; token 0 fills short
    sentences, and its label is -100. Each client is a site with a dialect: its tokens follow each other by
    rules that are partly its own.

    Args:
        sites: Number of clients.
        each: Sentences of each.
        vocabulary: Number of tokens.
        purpose: Sentences of another purpose are others of the same dialects.
    """

    def __init__(self, sites: int, each: int, vocabulary: int = 32, purpose: str = "train") -> None:
        common = generator(0, "sentences").permuted(np.tile(np.arange(1, vocabulary), (3, 1)), axis=1)
        self.owner = np.repeat(np.arange(sites), each)
        self._ids = np.zeros((sites * each, 16), dtype=np.int64)
        for row, site in enumerate(self.owner):
            rng = generator(0, f"sentences-{purpose}", row)
            rules = [0.7, 0.2, 0.1] if site % 2 else [0.2, 0.7, 0.1]
            token = int(rng.integers(1, vocabulary))
            for at in range(int(rng.integers(8, 17))):
                self._ids[row, at] = token
                token = int(common[rng.choice(3, p=rules), token - 1])

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, at: int) -> dict[str, np.ndarray]:
        ids = self._ids[at]
        mask = (ids > 0).astype(np.int64)
        return {"input_ids": ids, "attention_mask": mask, "labels": np.where(mask, ids, -100)}


def sentences(sites: int = 12, each: int = 60) -> tuple[Sentences, Sentences]:
    """Return sentences to train and to test a causal language model."""
    return Sentences(sites, each), Sentences(sites, each // 4, purpose="test")
