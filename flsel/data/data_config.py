"""Settings of the data layer, free of torch so that they can be read without loading it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from flsel.arguments import Range, UserPath, check_settings, shown
from flsel.arguments.later import Transform
from flsel.data.dataset_object import given, known
from flsel.errors import UserError

if TYPE_CHECKING:
    from flsel.data.materialise import Reading

NAMES = ("synthetic", "fashion_mnist", "mnist", "cifar10", "cifar100", "shakespeare", "folder", "npz", "leaf")

# Settings that only some of them read.
_READ_BY = {
    "path": ("folder", "npz", "leaf", "shakespeare"),
    "shape": ("npz", "leaf"),
    "image_size": ("folder",),
    "coarse_labels": ("cifar100",),
}


@dataclass(frozen=True)
class SyntheticConfig:
    """The generators of FedGS (appendix C; Synthetic(alpha, beta) of Li et al.) and FedPNS (section V-A).

    Attributes:
        generator: ``fedgs`` (every client has its own model and inputs) or ``fedpns`` (a share of the clients
            is i.i.d., the others have shifted inputs).
        alpha: FedGS: standard deviation of the mean of a client's model.
        beta: FedGS: standard deviation of the mean of a client's inputs.
        size_mean: FedGS: mean of the logarithm of a client's number of examples.
        size_std: FedGS: standard deviation of that logarithm.
        size_min: FedGS: examples added to each draw, so the smallest client has as many.
        size_max: FedGS: most examples of a client, or null for no limit.
        iid_share: FedPNS: share of i.i.d. clients (sigma); they come first.
        shift: FedPNS: standard deviation of the mean of a non-i.i.d. client's inputs (varrho).
        samples: FedPNS: examples per client including the share ``data.test`` held out for testing.
        variant: FedPNS: ``paper`` (one model labels everything, every client gives test examples) or
            ``reference`` (non-i.i.d. clients have their own models, only i.i.d. clients give test examples).
        dimension: Length of an input.
        classes: Number of labels.

    Raises:
        UserError: If a value is out of its range.
    """

    generator: Literal["fedgs", "fedpns"] = "fedgs"
    alpha: Annotated[float, Range(0)] = 0.5
    beta: Annotated[float, Range(0)] = 0.5
    size_mean: Annotated[float, Range()] = 4.0
    size_std: Annotated[float, Range(0)] = 2.0
    size_min: Annotated[int, Range(1)] = 50
    size_max: Annotated[int | None, Range(1)] = None
    iid_share: Annotated[float, Range(0, 1)] = 0.3
    shift: Annotated[float, Range(0)] = 1.0
    samples: Annotated[int, Range(2)] = 1000
    variant: Literal["paper", "reference"] = "paper"
    dimension: Annotated[int, Range(1)] = 60
    classes: Annotated[int, Range(2)] = 10

    def __post_init__(self) -> None:
        check_settings(self, "data.synthetic.")
        if self.size_max is not None and self.size_max < self.size_min:
            raise UserError(
                f"data.synthetic.size_max must be at least size_min ({self.size_min}), got {self.size_max}."
            )


@dataclass(frozen=True)
class DataConfig:
    """Which dataset a run uses and what is held out of it.

    Attributes:
        name: synthetic, fashion_mnist, mnist, cifar10, cifar100, shakespeare, folder, npz, leaf, or the
            import path of a LightningDataModule or of a callable that returns a (train, test) pair of
            datasets; from Python also such a module, a dataset, a pair of datasets, or arrays, which are read
            at once.
        root: Directory of the torchvision datasets, and of the folder ``shakespeare`` with LEAF's files; the
            environment variable FLSEL_DATA, or else ~/.cache/flsel, if not given.
        download: Fetch a missing dataset (for a LightningDataModule: call its prepare_data).
        path: Directory (folder: train/, val/ and test/ of class folders; leaf: the same of JSON files) or
            file (npz: x_train, y_train, x_test, y_test).
        shape: Shape of one example, for leaf and npz files that store them flat, such as [1, 28, 28].
        image_size: Height and width to which the images of a folder are resized, such as [32, 32].
        coarse_labels: CIFAR-100: the 20 superclasses instead of the 100 classes.
        init_args: Arguments of the class or function that ``name`` imports.
        columns: Which entries of examples that are mappings are used: ``inputs``, a list of names (all but
            the target without it), and ``target``, a name.
        groups: What partitions and selectors read as labels where targets are no class labels, or in their
            place: an attribute of the training set, or an entry of its examples, a whole number from 0 for
            each; null for none.
        strata: The same for targets that are one number each: so many quantiles; null for none.
        augment: Random transforms of training images, drawn anew for each example of each local step, before
            images are normalised: classes of torchvision's v2, such as ``RandomCrop`` and
            ``RandomHorizontalFlip``, that keep the shape.
        workers: Processes that read examples when they are needed, 0 for none besides the run's own. null
            reads all examples once, unless a ``collate_fn`` makes batches, examples are others whenever they
            are read (random augmentation), or they are more than memory holds: then as 0.
        validation: Share of the training set held out for validation; 0 for none. A validation set
            of the dataset itself is used instead.
        server: Share of the training set that the server keeps, on which it may measure losses; 0 for none.
        pixels: How images are scaled: ``standard``, by the mean and standard deviation of their dataset;
            ``symmetric``, to numbers in [-1, 1].
        test: Share of the training set held out for testing if the dataset has no test set.
        client_test: Share of each client's examples that is held out as its own test set
            (``evaluation.per_client``: the columns ``client_test/*``); 0 for none.
        synthetic: How synthetic data is generated.

    Raises:
        UserError: If a value is out of its range, or the shares add up to 1 or more.
    """

    if TYPE_CHECKING:
        name: Any = "synthetic"
    else:
        name: str = "synthetic"
    root: Annotated[str | None, UserPath()] = None
    download: bool = False
    path: Annotated[str | None, UserPath()] = None
    shape: Annotated[tuple[int, ...] | None, Range(1)] = None
    image_size: Annotated[tuple[int, int] | None, Range(1)] = None
    coarse_labels: bool = False
    init_args: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    groups: str | None = None
    strata: Annotated[int | None, Range(2, 1000)] = None
    augment: tuple[Callable[[], Transform], ...] = ()
    workers: Annotated[int | None, Range(0, 256)] = None
    validation: Annotated[float, Range(0, below=1)] = 0.1
    server: Annotated[float, Range(0, below=1)] = 0.05
    pixels: Literal["standard", "symmetric"] = "standard"
    test: Annotated[float, Range(0, below=1)] = 0.1
    client_test: Annotated[float, Range(0, below=1)] = 0.0
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)

    def __post_init__(self) -> None:
        self._take_object()
        check_settings(self, "data.")
        self._check_columns()
        if self.name not in NAMES and not _is_import_path(self.name):
            raise UserError(
                f"data.name must be one of {', '.join(NAMES)} or an import path, got {shown(self.name)}."
            )
        if self.name in ("folder", "npz", "leaf") and self.path is None:
            raise UserError(f"data.path must be given for data.name {self.name}.")
        for key, names in _READ_BY.items():
            if getattr(self, key) and self.name not in names:
                raise UserError(
                    f"data.{key} must not be set for data.name {self.name}: it is for {', '.join(names)}."
                )
        if self.init_args and self.name in NAMES:
            raise UserError(
                f"data.init_args must be empty ({{}}) for data.name {self.name}: "
                "only what is imported takes arguments."
            )
        given = {"columns": self.columns, "groups": self.groups, "workers": self.workers is not None}
        key = next((key for key, value in given.items() if value), "")
        if key and self.name in NAMES:
            raise UserError(
                f"data.{key} must not be set for data.name {self.name}: only what is imported, or given from "
                "Python, has entries and attributes."
            )
        total = self.validation + self.server + self.test
        if total >= 1:
            raise UserError(f"data.validation + data.server + data.test must be below 1, got {total:g}.")

    def _take_object(self) -> None:
        """Put the name of a dataset object in its place, which keeps the examples."""
        name: Any = self.name
        if isinstance(name, str):
            name = known(name)
        elif name is not None and not isinstance(name, bool | int | float | bytes | Mapping):
            name = given(name, download=self.download, init_args=self.init_args, reading=self.reading())
        object.__setattr__(self, "name", name)

    def _check_columns(self) -> None:
        inputs, target = self.columns.get("inputs", ()), self.columns.get("target")
        named = isinstance(inputs, list | tuple) and all(isinstance(name, str) for name in inputs)
        if not named or not isinstance(target, str | None) or not self.columns.keys() <= {"inputs", "target"}:
            raise UserError(
                "data.columns must have inputs, a list of names, and target, a name, such as {inputs: "
                f"[input_ids, attention_mask], target: label}}, got {shown(self.columns)}."
            )

    def reading(self) -> Reading:
        """Return which entries of examples are used."""
        from flsel.data.materialise import Reading

        return Reading(
            tuple(self.columns.get("inputs", ())), self.columns.get("target"), self.groups, self.workers
        )


def _is_import_path(name: str) -> bool:
    return "." in name and all(part.isidentifier() for part in name.split("."))
