"""Datasets in array files: NumPy's npz, and the JSON directories of the LEAF benchmark."""

from __future__ import annotations

import io
import math
import zipfile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flsel.data.check_arrays import (
    as_inputs,
    as_targets,
    as_tensor,
    check_dtype,
    count_classes,
    examples,
    fits_memory,
    measured,
    outputs_for,
    same_inputs,
)
from flsel.data.population import Examples, Normalize, Source, are_classes
from flsel.data.unused import Unused, part_of
from flsel.errors import UserError, short, users_code
from flsel.files import check_regular
from flsel.files.read_user_files import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Shape = tuple[int, ...]
# What inputs and labels are called, before or after the name of their part: x_train, train_images.
_INPUTS, _TARGETS = ("x", "images", "data"), ("y", "labels")
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_MOST_HEADER = 1 << 16  # bytes of a member that may be its header
_RULE = (
    "leaf reads numbers, or texts of one length with the character that follows (Shakespeare). "
    "docs/models-and-data.md turns the words of Sent140 and the pictures of CelebA into numbers."
)


def load_npz(path: Path, shape: Shape | None = None) -> Source:
    """Load the arrays ``x_train``, ``y_train`` and, where they exist, those of ``val`` and ``test``.

    ``train_images`` and ``train_labels`` are other names of the same (MedMNIST). The log names arrays that
    are not used. Inputs are uint8 images ``[S, H, W]``, ``[S, H, W, C]`` or ``[S, C, H, W]``, normalised by
    the mean and standard deviation of the training images, or prepared numbers ``[S, ...]``. The number of
    classes is the highest training label plus one. Other targets than one whole number for each example are
    those of a regression or of several labels.

    Args:
        path: The file.
        shape: Shape of one example, if the file stores them flat.

    Raises:
        UserError: If the file cannot be read, an array is missing, or its shape, type or values are wrong.
    """
    arrays = _read_npz(path)
    labels = _array(arrays, path, ("train", "y"))
    y = as_targets(labels.tensor, labels.where)
    classes = count_classes(y, labels.where) if are_classes(y) else 0
    parts = {"train": _npz_part(arrays, path, "train", shape, classes)}
    for part in ("validation", "test"):
        if (part, "x") in arrays or (part, "y") in arrays:
            parts[part] = _npz_part(arrays, path, part, shape, classes)
            same_inputs(parts["train"], parts[part], f"{path}: {part}")
    return Source(
        train=parts["train"],
        test=parts.get("test"),
        num_classes=classes,
        owner=None,
        normalize=measured(parts["train"].x),
        name=path.stem,
        validation=parts.get("validation"),
        outputs=outputs_for(y),
    )


class _Array(NamedTuple):
    tensor: Tensor
    where: str


_Key = tuple[str, str]  # a part, and x or y


def _key(name: str) -> _Key | None:
    """Return what an array is by its name, such as x_train or val_labels."""
    head, _, tail = name.rpartition("_")
    for kind, part in ((head, part_of(tail)), (tail, part_of(head))):
        if part is not None and kind.lower() in (*_INPUTS, *_TARGETS):
            return part, "x" if kind.lower() in _INPUTS else "y"
    return None


def _read_npz(path: Path) -> dict[_Key, _Array]:
    check_regular(path)
    if not path.is_file():
        raise UserError(f"data.path must be an npz file, but there is no file {path}.")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path} is not a readable npz file, an archive of named arrays.")
    with users_code(f"{path} is not a readable npz file", reads=True), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        named: dict[_Key, str] = {}
        unused = Unused(path)
        for name in members:
            key = _key(name)
            if key is None:
                unused.add(name)
            elif key in named:
                raise UserError(f"{path} must have one array for each part, got {named[key]} and {name}.")
            else:
                named[key] = name
        if not {("train", "x"), ("train", "y")} <= named.keys():
            raise UserError(
                f"{path} must have the arrays x_train and y_train (or train_images and train_labels), found "
                f"{short(', '.join(members) or 'none', 120)}."
            )
        unused.tell()
        return {
            key: _Array(
                as_tensor(_member(archive, members[name], path), f"{path}: {name}"), f"{path}: {name}"
            )
            for key, name in named.items()
        }


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


def _array(arrays: Mapping[_Key, _Array], path: Path, key: _Key) -> _Array:
    if key not in arrays:
        found = ", ".join(array.where.removeprefix(f"{path}: ") for array in arrays.values())
        raise UserError(f"{path} must have the array {key[1]}_{key[0]}, found {found}.")
    return arrays[key]


def _npz_part(
    arrays: Mapping[_Key, _Array], path: Path, part: str, shape: Shape | None, classes: int
) -> Examples:
    inputs, labels = (_array(arrays, path, (part, kind)) for kind in ("x", "y"))
    x = as_inputs(_reshaped(inputs.tensor, shape, inputs.where), inputs.where)
    y = as_targets(labels.tensor, labels.where)
    where = f"{inputs.where}, {labels.where.removeprefix(f'{path}: ')}"
    return examples(x, y, num_classes=classes, where=where)


def _reshaped(x: Tensor, shape: Shape | None, where: str) -> Tensor:
    if shape is None:
        return x
    try:
        return x.reshape(len(x), *shape)
    except RuntimeError:
        raise UserError(f"data.shape {list(shape)} does not fit {where}, shape {list(x.shape)}.") from None


class _Users(NamedTuple):
    names: list[str]
    x: list[np.ndarray]  # per user [n_k, ...]
    y: list[np.ndarray]  # per user [n_k]

    @property
    def sizes(self) -> list[int]:
        return [len(y) for y in self.y]


def load_leaf(path: Path, shape: Shape | None = None) -> Source:
    """Load LEAF's ``path/train/*.json`` and, where they exist, the folders ``val`` and ``test``.

    Every user is a natural client, in the order of the sorted file names and of the users within a file.
    Users without training examples are left out. The test data of all users are united, and remain known as
    theirs. Inputs and labels are
    numbers, or texts of one length and single characters (Shakespeare), which become the numbers of their
    characters among all that occur. The number of classes is the highest label plus one.

    Args:
        path: The directory.
        shape: Shape of one example; LEAF stores images flat, FEMNIST's are [1, 28, 28].

    Raises:
        UserError: If files are missing or malformed, or inputs or labels are neither.
    """
    unused = Unused(path)
    folders = unused.parts(folders=True)
    unused.tell()
    if "train" not in folders:
        raise UserError(
            f"{path / 'train'} must hold LEAF files *.json, found none; set data.path to its parent."
        )
    read = _as_numbers({part: _read_users(folder) for part, folder in folders.items()}, path)
    users = read["train"] = _with_examples(read["train"], folders["train"])
    labels = _joined([y for part in read.values() for y in part.y], str(path))
    labels = as_targets(labels, f"{path}: y")
    classes = count_classes(labels, str(path)) if are_classes(labels) else 0
    parts = {part: _united(found, str(folders[part]), shape, classes) for part, found in read.items()}
    for part, found in parts.items():
        same_inputs(parts["train"], found, str(folders[part]))
    return Source(
        train=parts["train"],
        test=parts.get("test"),
        num_classes=classes,
        owner=np.repeat(np.arange(len(users.y)), users.sizes),
        normalize=Normalize(),
        name=path.name,
        validation=parts.get("validation"),
        test_owner=_test_owner(users, read["test"]) if "test" in read else None,
        outputs=outputs_for(labels),
    )


def _test_owner(users: _Users, held: _Users) -> np.ndarray:
    """Return the number of the training user with the name of each test example's user, or -1."""
    numbers = {name: number for number, name in enumerate(users.names)}
    return np.repeat([numbers.get(name, -1) for name in held.names], held.sizes).astype(np.int64)


def _with_examples(users: _Users, folder: Path) -> _Users:
    """Leave out users without examples, and name them in the log."""
    unused = Unused(folder)
    for name, size in zip(users.names, users.sizes, strict=True):
        if size == 0:
            unused.add(f"user {name} without training examples")
    unused.tell()
    kept = [at for at, size in enumerate(users.sizes) if size]
    return _Users(*([part[at] for at in kept] for part in users))  # type: ignore[arg-type]


def _as_numbers(parts: dict[str, _Users], path: Path) -> dict[str, _Users]:
    """Turn texts into the numbers of their characters among all that occur, in the order of code points."""
    found = dict[str, list[np.ndarray]]()
    for kind in ("x", "y"):
        every = [array for users in parts.values() for array in (users.x if kind == "x" else users.y)]
        arrays = [array for array in every if len(array)]
        found[kind] = [array for array in arrays if array.dtype == np.uint32]
        if len(found[kind]) not in (0, len(arrays)):
            raise UserError(f"{path} must have texts or numbers as {kind} of all users, got both.")
    texts = [array.ravel() for arrays in found.values() for array in arrays]
    if not texts:
        return parts
    if not all(found.values()):
        kind, other = ("x", "y") if found["x"] else ("y", "x")
        text = "".join(map(chr, np.atleast_1d(found[kind][0][0])))
        raise UserError(
            f"{path}: {kind} are texts such as {short(repr(text), 60)} and {other} numbers; {_RULE}"
        )
    known = np.unique(np.concatenate(texts))

    def numbered(arrays: list[np.ndarray]) -> list[np.ndarray]:
        return [np.searchsorted(known, a).astype(np.int64) if a.dtype == np.uint32 else a for a in arrays]

    return {part: _Users(users.names, numbered(users.x), numbered(users.y)) for part, users in parts.items()}


def _read_users(folder: Path) -> _Users:
    unused = Unused(folder)
    entries = unused.visible(folder)
    files = [entry for entry in entries if entry.suffix == ".json"]
    if not files:
        raise UserError(f"{folder} must hold LEAF files *.json, found none; set data.path to its parent.")
    for entry in entries:
        if entry not in files:
            unused.add(entry)
    found, seen = _Users([], [], []), set[str]()
    for file in files:
        content = _read_json(file)
        every = content["user_data"] if isinstance(content["user_data"], dict) else {}
        for user in sorted(every.keys() - set(map(str, content["users"]))):
            unused.add(f"user {user}, who is not among the users of {file.name}")
        entries_of = {name for data in every.values() if isinstance(data, dict) for name in data}
        for name in sorted(entries_of - {"x", "y"}):
            unused.add(f"{name} of the users of {file.name}")
        for position, user in enumerate(map(str, content["users"])):
            if user in seen:
                raise UserError(f"{file}: user {user!r} appears twice; every user must have one entry.")
            seen.add(user)
            x, y = _user(content, position, f"{file}: user {user!r}")
            found.names.append(user)
            found.x.append(x)
            found.y.append(y)
    unused.tell()
    return found


def _read_json(file: Path) -> dict[str, Any]:
    check_regular(file)
    with users_code(f"{file} is not a readable JSON file", reads=True):
        content = parse_json(file.read_bytes())
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
    x, y = _characters(x, f"{where}: x"), _characters(y, f"{where}: y")
    for name, array in (("x", x), ("y", y)):
        if len(array):
            check_dtype(array.dtype, f"{where}: {name}")
    return x.astype(np.float32) if x.dtype.kind == "f" else x, y


def _characters(texts: np.ndarray, where: str) -> np.ndarray:
    """Return texts' code points, uint32 ``[n, length]`` or of single characters ``[n]``; keep numbers."""
    if texts.dtype.kind != "U":
        return texts
    lengths = {len(text) for text in texts.ravel().tolist()}
    if texts.ndim != 1 or len(lengths) != 1 or 0 in lengths:
        got = repr(texts[0].tolist()) if texts.ndim > 1 else f"{min(lengths)} to {max(lengths)} characters"
        raise UserError(f"{where} must be numbers or texts of one length, got {short(got, 60)}; {_RULE}")
    points = np.frombuffer(texts.tobytes(), dtype=np.uint32).reshape(len(texts), -1)
    return points[:, 0] if points.shape[1] == 1 else points


def _united(users: _Users, where: str, shape: Shape | None, classes: int) -> Examples:
    x = _reshaped(_joined(users.x, where), shape, where)
    y = as_targets(_joined(users.y, where), where)
    return examples(as_inputs(x, where), y, num_classes=classes, where=where)


def _joined(parts: list[np.ndarray], where: str) -> Tensor:
    filled = [part for part in parts if len(part)]
    if not filled:
        raise UserError(f"{where} has no examples.")
    try:
        return torch.from_numpy(np.concatenate(filled))
    except ValueError:
        raise UserError(f"{where} must have examples of one shape, but users differ.") from None
