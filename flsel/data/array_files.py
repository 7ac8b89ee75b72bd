"""Datasets in array files: NumPy's npz, and the JSON directories of the LEAF benchmark."""

from __future__ import annotations

import io
import json
import math
import zipfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flsel.data.check_arrays import (
    as_inputs,
    as_labels,
    as_tensor,
    check_dtype,
    count_classes,
    examples,
    fits_memory,
    measured,
    same_inputs,
)
from flsel.data.population import Examples, Normalize, Source
from flsel.errors import UserError, short, users_code
from flsel.files import check_regular

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Shape = tuple[int, ...]
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_MOST_HEADER = 1 << 16  # bytes of a member that may be its header


def load_npz(path: Path, shape: Shape | None = None) -> Source:
    """Load the arrays ``x_train``, ``y_train`` and, where they exist, ``x_test``, ``y_test``.

    Inputs are uint8 images ``[S, H, W]``, ``[S, H, W, C]`` or ``[S, C, H, W]``, normalised by the mean and
    standard deviation of the training images, or prepared numbers ``[S, ...]``. The number of classes is the
    highest training label plus one.

    Args:
        path: The file.
        shape: Shape of one example, if the file stores them flat.

    Raises:
        UserError: If the file cannot be read, an array is missing, or its shape, type or values are wrong.
    """
    arrays = _read_npz(path)
    y = as_labels(_array(arrays, path, "y_train"), f"{path}: y_train")
    classes = count_classes(y, f"{path}: y_train")
    train = _npz_part(arrays, path, "train", shape, classes)
    test = None
    if "x_test" in arrays or "y_test" in arrays:
        test = _npz_part(arrays, path, "test", shape, classes)
        same_inputs(train, test, f"{path}: x_test")
    return Source(train, test, classes, None, measured(train.x), path.stem)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise UserError(f"data.path must be an npz file, but there is no file {path}.")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is not a readable npz file, an archive of named arrays.")
    with users_code(f"{path} is not a readable npz file", reads=True), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        return {name: _member(archive, members[name], path) for name in _ARRAYS if name in members}


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> np.ndarray:
    """Read an array after a look at its header, which may promise more than there is."""
    where = f"{path}: {member.filename.removesuffix('.npy')}"
    with users_code(f"{where} cannot be read", reads=True):
        with archive.open(member) as stream:
            start = io.BytesIO(stream.read(_MOST_HEADER))
        read_header = _HEADERS.get(np.lib.format.read_magic(start))
        if read_header is None:
            raise UserError(f"{where} must be an array of numbers in NumPy's format 1.0 or 2.0.")
        shape, _, dtype = read_header(start)
        check_dtype(dtype, where)
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or size != member.file_size - start.tell():
            raise UserError(
                f"{where} is damaged: its header promises shape {short(list(shape), 60)} of {dtype}, but "
                f"{member.file_size - start.tell()} bytes follow."
            )
        fits_memory(where, size)
        with archive.open(member) as stream:
            array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def _array(arrays: Mapping[str, np.ndarray], path: Path, name: str) -> Tensor:
    if name not in arrays:
        raise UserError(f"{path} must have the array {name}, found {', '.join(arrays) or 'none of them'}.")
    return as_tensor(arrays[name], f"{path}: {name}")


def _npz_part(
    arrays: Mapping[str, np.ndarray], path: Path, part: str, shape: Shape | None, classes: int
) -> Examples:
    x = as_inputs(
        _reshaped(_array(arrays, path, f"x_{part}"), shape, f"{path}: x_{part}"), f"{path}: x_{part}"
    )
    y = as_labels(_array(arrays, path, f"y_{part}"), f"{path}: y_{part}")
    return examples(x, y, num_classes=classes, where=f"{path}: x_{part}, y_{part}")


def _reshaped(x: Tensor, shape: Shape | None, where: str) -> Tensor:
    if shape is None:
        return x
    try:
        return x.reshape(len(x), *shape)
    except RuntimeError:
        raise UserError(f"data.shape {list(shape)} does not fit {where}, shape {list(x.shape)}.") from None


class _Users(NamedTuple):
    x: list[np.ndarray]  # per user [n_k, ...]
    y: list[np.ndarray]  # per user [n_k]

    @property
    def sizes(self) -> list[int]:
        return [len(y) for y in self.y]


def load_leaf(path: Path, shape: Shape | None = None) -> Source:
    """Load LEAF's ``path/train/*.json`` and, where there is one, ``path/test/*.json``.

    Every user is a natural client, in the order of the sorted file names and of the users within a file. The
    test data of all users are united. Inputs and labels must be numbers; the number of classes is the highest
    label plus one.

    Args:
        path: The directory.
        shape: Shape of one example; LEAF stores images flat, FEMNIST's are [1, 28, 28].

    Raises:
        UserError: If files are missing or malformed, or an input or label is not a number.
    """
    folder = path / "train"
    users = _read_users(folder)
    if 0 in users.sizes:
        raise UserError(f"{folder}: user number {users.sizes.index(0)} has no examples; remove that user.")
    held = _read_users(path / "test") if (path / "test").is_dir() else None
    labels = _joined(users.y + (held.y if held else []), str(path))
    classes = count_classes(as_labels(labels, f"{path}: y"), str(path))
    train = _united(users, str(folder), shape, classes)
    test = None
    if held is not None:
        test = _united(held, str(path / "test"), shape, classes)
        same_inputs(train, test, str(path / "test"))
    owner = np.repeat(np.arange(len(users.y)), users.sizes)
    return Source(train, test, classes, owner, Normalize(), path.name)


def _read_users(folder: Path) -> _Users:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(f"{folder} must hold LEAF files *.json, found none; set data.path to its parent.")
    found, seen = _Users([], []), set[str]()
    for file in files:
        content = _read_json(file)
        for position, user in enumerate(map(str, content["users"])):
            if user in seen:
                raise UserError(f"{file}: user {user!r} appears twice; every user must have one entry.")
            seen.add(user)
            x, y = _user(content, position, f"{file}: user {user!r}")
            found.x.append(x)
            found.y.append(y)
    return found


def _read_json(file: Path) -> dict[str, Any]:
    check_regular(file)
    with users_code(f"{file} is not a readable JSON file", reads=True):
        content = json.loads(file.read_bytes())
    if not isinstance(content, dict) or not {"users", "num_samples", "user_data"} <= content.keys():
        raise UserError(f"{file} must be a LEAF file with the keys users, num_samples and user_data.")
    users, sizes = content["users"], content["num_samples"]
    if not isinstance(users, list) or not isinstance(sizes, list) or len(users) != len(sizes):
        raise UserError(f"{file} must have lists users and num_samples of one length.")
    return content


def _user(content: Mapping[str, Any], position: int, where: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        data = content["user_data"][str(content["users"][position])]
        x, y = np.asarray(list(data["x"])), np.asarray(list(data["y"]))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where} must have lists x and y in user_data, all examples of x alike.") from None
    expected = content["num_samples"][position]
    if not len(x) == len(y) == expected:
        raise UserError(
            f"{where} has {len(x)} inputs, {len(y)} labels and num_samples {expected}; they must agree."
        )
    for name, array in (("x", x), ("y", y)):
        if len(array):
            check_dtype(array.dtype, f"{where}: {name}")
    return x.astype(np.float32) if x.dtype.kind == "f" else x, y


def _united(users: _Users, where: str, shape: Shape | None, classes: int) -> Examples:
    x = _reshaped(_joined(users.x, where), shape, where)
    y = as_labels(_joined(users.y, where), where)
    return examples(as_inputs(x, where), y, num_classes=classes, where=where)


def _joined(parts: list[np.ndarray], where: str) -> Tensor:
    filled = [part for part in parts if len(part)]
    if not filled:
        raise UserError(f"{where} has no examples.")
    try:
        return torch.from_numpy(np.concatenate(filled))
    except ValueError:
        raise UserError(f"{where} must have examples of one shape, but users differ.") from None
