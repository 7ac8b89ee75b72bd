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
from PIL import Image, ImageOps
from torch import Tensor

from flsel.data.check_arrays import as_inputs, examples, fits_memory, measured, same_inputs
from flsel.data.idx import idx_pair, read_idx
from flsel.data.population import Examples, Normalize, Source
from flsel.data.unused import Unused
from flsel.errors import UserError, users_code
from flsel.files import check_regular, home

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from flsel.data.data_config import DataConfig


Size = tuple[int, int]


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
_DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")  # grey pictures of 16 bits
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


def load_folder(path: Path, size: Size | None = None) -> Source:
    """Load ``path/train/<class>/<image>``, and the folders ``val`` and ``test`` beside it where they exist.

    Images are decoded once, turned as their EXIF data say, to one channel if all of them are grey and to
    RGB otherwise, and normalised by the mean and standard deviation of the training images. The log says what
    lies there and is not used.

    Args:
        path: The folder.
        size: Height and width to which images are resized (bilinear, antialiased), or None.

    Raises:
        UserError: If there are no images, a test class is unknown, a file cannot be decoded, or sizes differ.
    """
    unused = Unused(path)
    parts = unused.parts(folders=True)
    if "train" not in parts:
        raise UserError(f"data.path must hold a folder train with one folder per class, got {path}.")
    files = {part: _files(folder, unused) for part, folder in parts.items()}
    classes = sorted({label for label, _ in files["train"]})
    if not classes:
        raise UserError(
            f"{parts['train']} must have a folder of images for each class, and it has no images."
        )
    index = {label: number for number, label in enumerate(classes)}
    decoded = {}
    for part, listed in files.items():
        if unknown := sorted({label for label, _ in listed} - index.keys()):
            raise UserError(
                f"{parts[part] / unknown[0]} is no class of the training set; remove it or add it to train."
            )
        if not listed:
            raise UserError(f"{parts[part]} has no images; add some or remove the folder.")
        decoded[part] = _decode([(file, index[label]) for label, file in listed], len(classes), size)
        same_inputs(decoded["train"], decoded[part], str(parts[part]))
    if all(_is_grey(part.x) for part in decoded.values()):
        decoded = {name: Examples(part.x[:, :1].contiguous(), part.y) for name, part in decoded.items()}
    unused.tell()
    train = decoded["train"]
    return Source(
        train=train,
        test=decoded.get("test"),
        num_classes=len(classes),
        owner=None,
        normalize=measured(train.x),
        name=path.name,
        validation=decoded.get("validation"),
    )


def _files(folder: Path, unused: Unused) -> list[tuple[str, Path]]:
    """List the images below the class folders of a part, each with its class, in a fixed order."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    found = []
    for entry in unused.visible(folder):
        if not entry.is_dir():
            unused.add(entry)
            continue
        images, rest = list[Path](), list[Path]()
        for file in _below(entry, unused):
            (images if file.suffix.lower() in IMG_EXTENSIONS else rest).append(file)
        for path in rest if images else [entry]:
            unused.add(path)
        found += [(entry.name, file) for file in images]
    return found


def _below(folder: Path, unused: Unused) -> Iterator[Path]:
    """Yield the files below a folder, its own first; a link back to a folder around it is not followed."""
    around = [folder.resolve(), *folder.resolve().parents]
    entries = unused.visible(folder)
    yield from (entry for entry in entries if not entry.is_dir())
    for entry in entries:
        if entry.is_dir() and entry.resolve() in around:
            unused.add(entry)
        elif entry.is_dir():
            yield from _below(entry, unused)


def _decode(files: Sequence[tuple[Path, int]], classes: int, size: Size | None) -> Examples:
    with warnings.catch_warnings():
        # Pillow warns of odd notes beside the pixels, and no more than that of pictures which are up to twice
        # as large as it decodes.
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        pixels = _all_pixels([file for file, _ in files], size)
    labels = torch.tensor([label for _, label in files], dtype=torch.int64)
    where = str(files[0][0].parents[1])
    return examples(torch.from_numpy(pixels), labels, num_classes=classes, where=where)


def _all_pixels(files: Sequence[Path], resized: Size | None) -> np.ndarray:
    """Decode images of one size, or resized to it, ``[S, 3, H, W]``."""
    height, width = size = resized or _pixels(files[0]).shape[:2]
    fits_memory(f"{files[0].parents[1]}: {len(files)} images", len(files) * 3 * height * width)
    pixels = np.empty((len(files), 3, height, width), dtype=np.uint8)

    def decode(begin: int) -> None:
        for position in range(begin, min(begin + _CHUNK, len(files))):
            picture = _pixels(files[position], size, resized=resized is not None)
            pixels[position] = np.moveaxis(picture, -1, 0)

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        for _ in pool.map(decode, range(0, len(files), _CHUNK)):
            pass
    return pixels


def _pixels(file: Path, size: tuple[int, ...] | None = None, *, resized: bool = False) -> np.ndarray:
    """Decode one image to RGB, ``[H, W, 3]``, as it is to be looked at.

    Args:
        file: The file.
        size: Height and width that it must have, or get.
        resized: Resize it.
    """
    check_regular(file)
    with users_code(f"cannot read the image {file}", reads=True), Image.open(file) as opened:
        if opened.mode not in (*_MODES, *_DEEP_MODES):
            raise UserError(
                f"{file} must be an image of 8 or 16 bits per channel, got the mode {opened.mode}."
            )
        frames = getattr(opened, "n_frames", 1)
        if frames > 1:
            raise UserError(f"{file} must be one picture, and it has {frames} frames.")
        image = ImageOps.exif_transpose(opened)
        if image.mode in _DEEP_MODES:
            image = Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
        image = image.convert("RGB")
        if resized and size is not None:
            image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        if size is not None and size != (image.height, image.width):
            raise UserError(
                f"{file} has {image.width} x {image.height} pixels but the first image {size[1]} x "
                f"{size[0]}: set data.image_size, such as [{size[0]}, {size[1]}], to resize all images."
            )
        return np.asarray(image)


def _is_grey(x: Tensor) -> bool:
    return torch.equal(x[:, 0], x[:, 1]) and torch.equal(x[:, 0], x[:, 2])


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].strip()
