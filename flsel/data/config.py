"""Settings of the data layer, free of torch so that they can be read without loading it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from flsel.errors import UserError

NAMES = ("synthetic", "fashion_mnist", "mnist", "cifar10", "cifar100", "folder", "npz", "leaf")


@dataclass(frozen=True)
class SyntheticConfig:
    """The generators of FedGS (appendix C; Synthetic(alpha, beta) of Li et al.) and FedPNS (section V-A).

    Attributes:
        generator: ``fedgs`` (every client has its own model and inputs) or ``fedpns`` (a share of the clients
            is i.i.d., the others have shifted inputs).
        alpha: FedGS: standard deviation of the mean of a client's model, >= 0.
        beta: FedGS: standard deviation of the mean of a client's inputs, >= 0.
        size_mean: FedGS: mean of the logarithm of a client's number of examples.
        size_std: FedGS: standard deviation of that logarithm, >= 0.
        size_min: FedGS: examples added to each draw, so the smallest client has as many, >= 1.
        size_max: FedGS: most examples of a client, or null for no limit.
        iid_share: FedPNS: share of i.i.d. clients (sigma), in [0, 1]; they come first.
        shift: FedPNS: standard deviation of the mean of a non-i.i.d. client's inputs (varrho), >= 0.
        samples: FedPNS: examples per client including the share ``data.test`` held out for testing, >= 2.
        variant: FedPNS: ``paper`` (one model labels everything, every client gives test examples) or
            ``reference`` (non-i.i.d. clients have their own models, only i.i.d. clients give test examples).
        dimension: Length of an input, >= 1.
        classes: Number of labels, >= 2.

    Raises:
        UserError: If a value is out of its range.
    """

    generator: Literal["fedgs", "fedpns"] = "fedgs"
    alpha: float = 0.5
    beta: float = 0.5
    size_mean: float = 4.0
    size_std: float = 2.0
    size_min: int = 50
    size_max: int | None = None
    iid_share: float = 0.3
    shift: float = 1.0
    samples: int = 1000
    variant: Literal["paper", "reference"] = "paper"
    dimension: int = 60
    classes: int = 10

    def __post_init__(self) -> None:
        _one_of("synthetic.generator", self.generator, ("fedgs", "fedpns"))
        _one_of("synthetic.variant", self.variant, ("paper", "reference"))
        for name in ("alpha", "beta", "size_std", "shift"):
            _within(f"synthetic.{name}", getattr(self, name), 0, math.inf)
        _within("synthetic.size_mean", self.size_mean, -math.inf, math.inf)
        _within("synthetic.size_min", self.size_min, 1, math.inf)
        if self.size_max is not None:
            _within("synthetic.size_max", self.size_max, self.size_min, math.inf)
        _within("synthetic.iid_share", self.iid_share, 0, 1)
        _within("synthetic.samples", self.samples, 2, math.inf)
        _within("synthetic.dimension", self.dimension, 1, math.inf)
        _within("synthetic.classes", self.classes, 2, math.inf)


@dataclass(frozen=True)
class DataConfig:
    """Which dataset a run uses and what is held out of it.

    Attributes:
        name: synthetic, fashion_mnist, mnist, cifar10, cifar100, folder, npz, leaf, or the import path of a
            LightningDataModule or of a callable that returns a (train, test) pair of datasets.
        root: Directory of the torchvision datasets; the environment variable FLSEL_DATA, or else
            ~/.cache/flsel, if not given.
        download: Fetch a missing dataset (for a LightningDataModule: call its prepare_data).
        path: Directory (folder: train/ and test/ of class folders; leaf: train/ and test/ of JSON files) or
            file (npz: x_train, y_train, x_test, y_test).
        shape: Shape of one example, for leaf and npz files that store them flat, such as [1, 28, 28].
        coarse_labels: CIFAR-100: the 20 superclasses instead of the 100 classes.
        init_args: Arguments of the class or function that ``name`` imports.
        validation: Share of the training set held out for validation, in [0, 1); 0 for none. A validation set
            that the dataset brings is used instead.
        server: Share of the training set that the server may look at, in [0, 1); 0 for none.
        test: Share of the training set held out for testing where the dataset brings no test set, in [0, 1).
        synthetic: How synthetic data is generated.

    Raises:
        UserError: If a value is out of its range, or the shares add up to 1 or more.
    """

    name: str = "synthetic"
    root: str | None = None
    download: bool = False
    path: str | None = None
    shape: tuple[int, ...] | None = None
    coarse_labels: bool = False
    init_args: dict[str, Any] = field(default_factory=dict)
    validation: float = 0.1
    server: float = 0.05
    test: float = 0.1
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)

    def __post_init__(self) -> None:
        if self.name not in NAMES and not _is_import_path(self.name):
            raise UserError(
                f"data.name must be one of {', '.join(NAMES)} or an import path, got {self.name!r}."
            )
        if self.name in ("folder", "npz", "leaf") and self.path is None:
            raise UserError(f"data.path must be given for data.name {self.name}.")
        if self.coarse_labels and self.name != "cifar100":
            raise UserError(
                f"data.coarse_labels must be false for data.name {self.name}: only cifar100 has them."
            )
        if self.shape is not None and (not self.shape or min(self.shape) < 1):
            raise UserError(f"data.shape must be positive numbers, got {list(self.shape)}.")
        for name in ("validation", "server", "test"):
            _within(name, getattr(self, name), 0, 1)
        total = self.validation + self.server + self.test
        if total >= 1:
            raise UserError(f"data.validation + data.server + data.test must be below 1, got {total:g}.")


def _is_import_path(name: str) -> bool:
    return "." in name and all(part.isidentifier() for part in name.split("."))


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"data.{key} must be {' or '.join(allowed)}, got {value!r}.")


def _within(key: str, value: float, low: float, high: float) -> None:
    if low <= value <= high and math.isfinite(value):
        return
    rule = f"in [{low:g}, {high:g}]" if math.isfinite(high) else f"finite and >= {low:g}"
    raise UserError(f"data.{key} must be {'finite' if math.isinf(low) else rule}, got {value}.")
