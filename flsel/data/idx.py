"""IDX files, the format of MNIST: an array of bytes behind a header."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flsel.files import check_regular

_BYTES = b"\x00\x00\x08"  # followed by the rank, then each length in four bytes


def idx_pair(folder: Path, *, train: bool) -> tuple[Path, Path]:
    """Return where MNIST keeps its images and labels."""
    part = "train" if train else "t10k"
    return folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"


def read_idx(file: Path) -> np.ndarray:
    """Read an IDX file of bytes, uint8 of the shape that its header says.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is another file, or shorter or longer than its header says.
        UserError: If it is a pipe or a device.
    """
    check_regular(file)
    raw = np.fromfile(file, dtype=np.uint8)
    if raw[:3].tobytes() != _BYTES or len(raw) < 4:
        raise ValueError(f"{file.name} is not an IDX file of bytes")
    begin = 4 + 4 * int(raw[3])
    if len(raw) < begin:
        raise ValueError(f"{file.name} ends within its header")
    shape = [int(length) for length in raw[4:begin].view(">i4")]
    values = raw[begin:]
    if min(shape, default=0) < 0 or len(values) != np.prod(shape, dtype=object):
        raise ValueError(f"{file.name} has {len(values)} bytes of values for the shape {shape}")
    return values.reshape(shape)
