"""Image datasets: torchvision's by name, and folders of image files. Images stay uint8 ``[S, C, H, W]``."""

from __future__ import annotations

import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from flsel.data.check_arrays import as_inputs, examples, fits_memory, measured, same_inputs
from flsel.data.idx import idx_pair, read_idx
from flsel.data.population import Examples, Normalize, Source
from flsel.errors import UserError, users_code
from flsel.files import check_regular, home

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flsel.data.data_config import DataConfig


class _Known(NamedTuple):
    dataset: str
    folder: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int = 10


# Fashion-MNIST takes MNIST's statistics, as the reference implementations of FedCor and FedGS do.
_KNOWN = {
    "mnist": _Known("MNIST", "MNIST/raw", (0.1307,), (0.3081,)),
    "fashion_mnist": _Known("FashionMNIST", "FashionMNIST/raw", (0.1307,), (0.3081,)),
    "cifar10": _Known("CIFAR10", "cifar-10-batches-py", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": _Known(
        "CIFAR100", "cifar-100-python", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), 100
    ),
}
_COARSE_CLASSES = 20
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
_CHUNK = 64  # images per task, to spare threads the hand-over for each


def data_root(config: DataConfig) -> Path:
    """Return the directory of the torchvision datasets: ``data.root``, $FLSEL_DATA or ~/.cache/flsel."""
    return home(config.root or os.environ.get("FLSEL_DATA") or "~/.cache/flsel")


def load_torchvision(config: DataConfig) -> Source:
    """Load MNIST, Fashion-MNIST, CIFAR-10 or CIFAR-100 from the data root.

    Normalised by the mean / standard deviation of the papers' experiments: 0.1307 / 0.3081 for MNIST and
    Fashion-MNIST; (0.4914, 0.4822, 0.4465) / (0.2023, 0.1994, 0.2010) for CIFAR-10 (FedGS); CIFAR-100's own
    (0.5071, 0.4865, 0.4409) / (0.2673, 0.2564, 0.2762).

    Raises:
        UserError: If the dataset is missing, unreadable or cannot be fetched.
    """
    known, root = _KNOWN[config.name], data_root(config)
    classes = _COARSE_CLASSES if config.coarse_labels else known.classes
    parts = []
    for train in (True, False):
        data, labels = _open(config, known, root, train=train)
        if config.coarse_labels:
            labels = _coarse_labels(root, train=train)
        where = f"{root / known.folder}: the {'training' if train else 'test'} set of {config.name}"
        images = as_inputs(torch.as_tensor(data), where)
        parts.append(examples(images, torch.as_tensor(labels), num_classes=classes, where=where))
    return Source(parts[0], parts[1], classes, None, Normalize(known.mean, known.std), config.name)


def _open(config: DataConfig, known: _Known, root: Path, *, train: bool) -> tuple[Any, Any]:
    """Return images and labels as they are stored."""
    folder = root / known.folder
    if not folder.is_dir() and not config.download:
        raise UserError(
            f"{config.name} not found: searched {folder}; set data.root or FLSEL_DATA to the directory that "
            f"holds {known.folder}, or data.download: true to fetch it."
        )
    files = idx_pair(folder, train=train)
    try:
        if "MNIST" in known.dataset and all(file.exists() for file in files):
            images, labels = map(read_idx, files)
            return images, labels.astype(np.int64)
        # Imports torch's compiler, which takes longer than a small run.
        from torchvision import datasets

        raw = getattr(datasets, known.dataset)(root, train=train, download=config.download)
        return raw.data, raw.targets
    except UserError:
        raise
    # torchvision's readers fail in as many ways as there are broken files, assertions included.
    except Exception as error:
        raise UserError(
            f"cannot read {config.name} in {folder} ({_first_line(error)}); a file is missing, truncated or "
            f"not writable: mend or delete the directory, and fetch it again with data.download: true."
        ) from error


def _coarse_labels(root: Path, *, train: bool) -> list[int]:
    # torchvision has just verified the file's checksum but hands out its fine labels only.
    with (root / _KNOWN["cifar100"].folder / ("train" if train else "test")).open("rb") as file:
        labels: list[int] = pickle.load(file, encoding="latin1")["coarse_labels"]
    return labels


def load_folder(path: Path) -> Source:
    """Load ``path/train/<class>/<image>`` and, where there is one, ``path/test/<class>/<image>``.

    Images are decoded once, to one channel if all of them are grey and to RGB otherwise, and normalised
    by the mean and standard deviation of the training images.

    Raises:
        UserError: If there are no images, a test class is unknown, a file cannot be decoded, or sizes differ.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes, make_dataset

    if not (path / "train").is_dir():
        raise UserError(f"data.path must hold a folder train with one folder per class, got {path}.")
    try:
        classes, index = find_classes(path / "train")
        train_files = make_dataset(path / "train", index, extensions=IMG_EXTENSIONS)
    except FileNotFoundError as error:
        raise UserError(
            f"{path / 'train'} must have images in every class folder: {_first_line(error)}"
        ) from None
    train, test = _decode(train_files, len(classes)), None
    if (path / "test").is_dir():
        test = _decode(_test_files(path / "test", index), len(classes))
        same_inputs(train, test, str(path / "test"))
    if _is_grey(train.x) and (test is None or _is_grey(test.x)):
        train = Examples(train.x[:, :1].contiguous(), train.y)
        test = test and Examples(test.x[:, :1].contiguous(), test.y)
    return Source(train, test, len(classes), None, measured(train.x), path.name)


def _test_files(folder: Path, index: dict[str, int]) -> list[tuple[str, int]]:
    unknown = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name not in index)
    if unknown:
        raise UserError(
            f"{folder / unknown[0]} is no class of the training set; remove it or add it to train."
        )
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    files = make_dataset(folder, index, extensions=IMG_EXTENSIONS, allow_empty=True)
    if not files:
        raise UserError(f"{folder} has no images; add some or remove the folder.")
    return list(files)


def _decode(files: Sequence[tuple[str, int]], classes: int) -> Examples:
    with warnings.catch_warnings():
        # Pillow warns of odd notes beside the pixels, and no more than that of pictures which are up to twice
        # as large as it decodes.
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        pixels = _all_pixels([Path(file) for file, _ in files])
    labels = torch.tensor([label for _, label in files], dtype=torch.int64)
    where = str(Path(files[0][0]).parents[1])
    return examples(torch.from_numpy(pixels), labels, num_classes=classes, where=where)


def _all_pixels(files: Sequence[Path]) -> np.ndarray:
    """Decode images of one size, ``[S, 3, H, W]``."""
    height, width = size = _pixels(files[0]).shape[:2]
    fits_memory(f"{files[0].parents[1]}: {len(files)} images", len(files) * 3 * height * width)
    pixels = np.empty((len(files), 3, height, width), dtype=np.uint8)

    def decode(begin: int) -> None:
        for position in range(begin, min(begin + _CHUNK, len(files))):
            pixels[position] = np.moveaxis(_pixels(files[position], size), -1, 0)

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(decode, range(0, len(files), _CHUNK)):
            pass
    return pixels


def _pixels(file: Path, size: tuple[int, ...] | None = None) -> np.ndarray:
    """Decode one image to RGB, ``[H, W, 3]``, if it is one of 8 bits and of the height and width ``size``."""
    check_regular(file)
    with users_code(f"cannot read the image {file}", reads=True), Image.open(file) as image:
        if image.mode not in _MODES:
            raise UserError(f"{file} must be an image of 8 bits per channel, got the mode {image.mode}.")
        frames = getattr(image, "n_frames", 1)
        if frames > 1:
            raise UserError(f"{file} must be one picture, and it has {frames} frames.")
        if size is not None and size != (image.height, image.width):
            raise UserError(
                f"{file} has {image.width} x {image.height} pixels but the first image {size[1]} x "
                f"{size[0]}; all images must have one size."
            )
        return np.asarray(image.convert("RGB"))


def _is_grey(x: Tensor) -> bool:
    return torch.equal(x[:, 0], x[:, 1]) and torch.equal(x[:, 0], x[:, 2])


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].strip()
