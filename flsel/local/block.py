"""A block of memory that processes share, with stacks of starts and of answers in it."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import final

import torch
from torch import Tensor

from flsel.params import Params

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]
# Tensors begin at multiples of so many bytes, as torch's own do.
_GRAIN = 64


@final
class Block:
    """Stacks in shared memory.

    Args:
        starts: Names, shapes and kinds of the starts.
        answers: The same of the answers.
        file: Descriptor of the memory of a block like this one; None makes new memory.

    Attributes:
        starts: Stack of starts.
        answers: Stack of answers.
    """

    def __init__(self, starts: Layout, answers: Layout, file: int | None = None) -> None:
        self.layouts = (starts, answers)
        every = [*starts.values(), *answers.values()]
        sizes = [-(-math.prod(shape) * kind.itemsize // _GRAIN) * _GRAIN for shape, kind in every]
        length = max(sum(sizes), _GRAIN)
        self._file = _anonymous(length) if file is None else file
        weakref.finalize(self, os.close, self._file)
        memory = torch.frombuffer(mmap.mmap(self._file, length), dtype=torch.uint8)
        pieces = torch.split(memory[: sum(sizes)], sizes)
        tensors = [_as(piece, *which) for piece, which in zip(pieces, every, strict=True)]
        self.starts: Params = dict(zip(starts, tensors, strict=False))
        self.answers: Params = dict(zip(answers, tensors[len(starts) :], strict=True))

    def hand(self, pipe: Connection, process: int) -> None:
        """Let the process at the other end of a pipe :func:`take` the block."""
        # Not as a message: for that a thread of multiprocessing waits to be asked for the memory, and prints
        # what happens to it if the process dies meanwhile.
        send_handle(pipe, self._file, process)


def take(pipe: Connection, layouts: tuple[Layout, Layout]) -> Block:
    """Take the block that the process at the other end of a pipe hands out."""
    return Block(*layouts, file=recv_handle(pipe))


def layout(tensors: Params, *leading: int) -> Layout:
    """Tell names, shapes (with further dimensions in front) and kinds of tensors."""
    return {name: ((*leading, *value.shape), value.dtype) for name, value in tensors.items()}


def _anonymous(length: int) -> int:
    """Open memory without a name, which goes when nobody has it open any more."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("flsel")
    else:
        with tempfile.TemporaryFile() as opened:
            file = os.dup(opened.fileno())
    os.ftruncate(file, length)
    return file


def _as(piece: Tensor, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
    """View the beginning of some bytes as a tensor."""
    return piece[: math.prod(shape) * kind.itemsize].view(kind).view(shape)
