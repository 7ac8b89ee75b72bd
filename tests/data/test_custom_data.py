import random
import re

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    random_split,
)

from flsel.data.custom import load_object
from flsel.data.data_config import DataConfig
from flsel.data.read_later import Later
from flsel.data.sources import load_source
from flsel.errors import UserError

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


class Listed(Dataset):
    def __init__(self, examples, **attributes):
        self.examples = examples
        vars(self).update(attributes)

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, position):
        return self.examples[position]


class Long(Listed):
    def __len__(self):
        return 10**13


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(0, 0)])


class Module(LightningDataModule):
    prepared = False

    def __init__(self, size: int = 12):
        super().__init__()
        self.size = size

    def prepare_data(self):
        type(self).prepared = True

    def setup(self, stage):
        whole = TensorDataset(X[: self.size], Y[: self.size])
        self.parts = random_split(whole, [self.size - 5, 3, 2], torch.Generator().manual_seed(0))

    def train_dataloader(self):
        return DataLoader(self.parts[0], batch_size=2, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], batch_size=2)

    def test_dataloader(self):
        return DataLoader(self.parts[2], batch_size=2)


class TrainOnly(LightningDataModule):
    num_classes = 5

    def train_dataloader(self):
        return DataLoader(TensorDataset(X, Y))


class Unprepared(Module):
    def setup(self, stage):
        if not self.prepared:
            raise FileNotFoundError("no files yet")
        super().setup(stage)


class ManyLoaders(TrainOnly):
    def test_dataloader(self):
        return [DataLoader(TensorDataset(X, Y))] * 2


class Chosen(LightningDataModule):
    def __init__(self, chooses="nothing"):
        super().__init__()
        self.options = {
            "nothing": {"shuffle": True},
            "some": {"sampler": SubsetRandomSampler(range(5))},
            "again": {"sampler": RandomSampler(X, replacement=True)},
            "in batches": {"batch_sampler": [[0, 1], [2]]},
        }[chooses]

    def train_dataloader(self):
        return DataLoader(TensorDataset(X, Y), **self.options)


class Transferred(TrainOnly):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch


class Doubled(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return 2 * x, y


def doubled():
    return Doubled(X, Y)


def pair(rows: int = 12, test: bool = True):
    return TensorDataset(X[:rows], Y[:rows]), TensorDataset(X[:2], Y[:2]) if test else None


def single(kind: str = "tensors"):
    images = np.arange(3 * 4 * 5 * 3, dtype=np.uint8).reshape(3, 4, 5, 3)
    pair_of = {
        "tensors": lambda i: (torch.full((2,), float(i)), torch.tensor(i)),
        "arrays": lambda i: (np.full((2,), float(i)), np.int32(i)),
        "numbers": lambda i: (float(i), i),
        "colour": lambda i: (Image.fromarray(images[i]), i),
        "grey": lambda i: (Image.fromarray(images[i, :, :, 0]), i),
        "palette": lambda i: (Image.fromarray(images[i]).quantize(20), i),
    }[kind]
    return Listed([pair_of(i) for i in range(3)])


def natural(owner, classes=None):
    attributes = {} if classes is None else {"classes": classes}
    return Listed([(torch.zeros(2), 0)] * len(owner), owner=owner, **attributes)


def counted(classes):
    return Listed([(torch.zeros(2), 0)], num_classes=classes)


def broken(what: str):
    row = (torch.zeros(2), 0)
    return {
        "text": "a dataset",
        "none": None,
        "quadruple": (single(), single(), single(), single()),
        "uneven arrays": (np.zeros((3, 2)), np.zeros(2, dtype=int)),
        "arrays of objects": (np.array(["a", "b"], dtype=object), np.arange(2)),
        "stream": Stream(),
        "dict": (dict.fromkeys(range(3), row), None),
        "empty": Listed([]),
        "not pairs": Listed([1]),
        "no label": Listed([{"x": 1, "y_true": 2}]),
        "two labels": Listed([{"x": 1, "y": 2, "label": 2}]),
        "two inputs": Listed([{"left": 1, "right": 1, "y": 2}]),
        "two tensors": Listed([((torch.zeros(2), torch.zeros(2)), 0)]),
        "ragged": Listed([([[1], [1, 2]], 0)]),
        "wide": Listed([(np.zeros(2, np.longdouble), 0)]),
        "beyond int64": Listed([(np.array([2**64 - 1], np.uint64), 0)]),
        "beyond memory": Long([row]),
        "ragged owner": natural([[0], [0, 1]]),
        "many classes": Listed([row, (torch.zeros(2), 10**9)]),
        "shapes": Listed([row, (torch.zeros(3), 0)]),
        "dtypes": Listed([row, (torch.zeros(2, dtype=torch.int64), 0)]),
        "regression": Listed([(torch.zeros(2), 0.5)]),
        "vector labels": Listed([(torch.zeros(2), torch.zeros(3, dtype=torch.int64))]),
        "negative": Listed([row, (torch.zeros(2), -1)]),
        "beyond": Listed([row, (torch.zeros(2), 4)], num_classes=4),
        "classes": Listed([row], num_classes="ten"),
        "nan": Listed([row, (torch.tensor([0.0, float("nan")]), 1)]),
        "float tensors": TensorDataset(X, X[:, 0]),
        "objects": Listed([("some text", 0)]),
        "test shape": (single(), Listed([(torch.zeros(3), 0)])),
        "test label": (single(), Listed([(torch.zeros(2), 3)])),
        "owner length": natural([0]) and Listed([row, row], owner=[0]),
        "owner negative": natural([0, -2]),
        "owner fraction": natural([0.5, 1.0]),
        "owner of nobody": natural([-1, -1]),
        "owner of two kinds": (natural([0, 1]), natural(["a", "b"])),
    }[what]


class Fails(Listed):
    def __getitem__(self, position):
        if position == 3:
            raise KeyError(position)
        return super().__getitem__(position)

    def __len__(self):
        return 6 if len(self.examples) == 6 else 1 / 0


def fail(what):
    if what == "raise":
        raise RuntimeError("the disk is gone")
    if what == "exit":
        raise SystemExit(3)
    return Fails([(0.0, 0)] * (6 if what == "item" else 5))


MAPPINGS = []


def mappings():
    return Listed(MAPPINGS)


def triple(validation=True):
    whole = TensorDataset(X, Y)
    return (
        whole,
        torch.utils.data.Subset(whole, range(3)) if validation else None,
        TensorDataset(X[:2], Y[:2]),
    )


not_callable = 3


def load(thing, **config):
    return load_source(DataConfig(name=f"{__name__}.{thing}", **config), clients=None, seed=0)


def arrays(parts):
    pair = (X.numpy()[::-1], Y.numpy()[::-1])
    return pair if parts == 1 else (pair, None, (X[:2], Y[:2]))


@pytest.mark.parametrize("parts", [1, 3])
def test_arrays_are_a_dataset(parts):
    source = load("arrays", init_args={"parts": parts})
    assert torch.equal(source.train.x, X.flip(0))
    assert torch.equal(source.train.y, Y.flip(0))
    assert (source.test is None, source.validation) == (parts == 1, None)


def test_pair():
    source = load("pair", init_args={"rows": 10})
    assert torch.equal(source.train.x, X[:10])
    assert torch.equal(source.test.y, Y[:2])
    assert (source.num_classes, source.name, source.owner, source.validation) == (3, "pair", None, None)


def shuffled():
    order = np.random.permutation(len(Y)).tolist()
    random.shuffle(order)
    return TensorDataset(X[order], Y[order]), None


def test_what_draws_from_a_global_generator_is_the_same_dataset_each_time():
    first, again = load("shuffled").train, load("shuffled").train
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, X)


class Augmented(torch.utils.data.Dataset):
    """Draws an example's input anew whenever it is read, by some generator."""

    def __init__(self, draws):
        self.draws = draws
        self.own = np.random.default_rng(3)

    def __len__(self):
        return 40

    def __getitem__(self, position):
        rare = {
            "torch": lambda: float(torch.rand(())) < 0.02,
            "numpy": lambda: np.random.rand() < 0.02,
            "python": lambda: random.random() < 0.02,
            "own": lambda: self.own.random() < 0.5,
            "label": lambda: False,
        }[self.draws]()
        label = int(np.random.rand() < 0.5) if self.draws == "label" else position % 2
        return torch.full((3,), float(position)).flip(0) * (-1 if rare else 1), label


@pytest.mark.parametrize("draws", ["torch", "numpy", "python", "label"])
@pytest.mark.parametrize("part", ["training", "test"])
def test_examples_that_are_drawn_anew_are_read_when_needed(draws, part, caplog):
    made = (Augmented(draws), None) if part == "training" else ((X, Y), Augmented(draws))
    globals()["drawn"] = lambda: made
    with caplog.at_level("INFO", "flsel"):
        source = load("drawn")
    assert re.search(
        rf"since .* the {part} set, example \d+ is another one each time it is read", caplog.text
    )
    assert isinstance(source.train.x, Later)


@pytest.mark.parametrize("part", ["training", "test"])
def test_examples_that_no_seed_repeats_are_refused(part):
    made = (Augmented("own"), None) if part == "training" else ((X, Y), Augmented("own"))
    globals()["drawn"] = lambda: made
    with pytest.raises(UserError, match=rf"the {part} set must draw from the global generators"):
        load("drawn")


class DrawnOnce(torch.utils.data.Dataset):
    """Draws, but gives the same example whenever it is read."""

    def __len__(self):
        return 40

    def __getitem__(self, position):
        torch.manual_seed(position)
        return torch.randn(3), position % 2


def test_what_draws_the_same_whenever_it_is_read_is_taken():
    assert len(load("DrawnOnce").train) == 40


def test_tensors_are_not_copied():
    assert load("pair").train.x.data_ptr() == X.data_ptr()


def test_pair_without_test():
    assert load("pair", init_args={"test": False}).test is None


@pytest.mark.parametrize("kind", ["tensors", "arrays", "numbers"])
def test_examples_of_any_kind(kind):
    source = load("single", init_args={"kind": kind})
    assert source.train.x.dtype == torch.float32
    assert source.train.x.reshape(3, -1)[:, 0].tolist() == [0, 1, 2]
    assert source.train.y.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("kind", "channels"), [("colour", 3), ("grey", 1), ("palette", 3)])
def test_pictures_stay_uint8(kind, channels):
    source = load("single", init_args={"kind": kind})
    assert source.train.x.shape == (3, channels, 4, 5)
    assert source.train.x.dtype == torch.uint8
    assert source.train.x[0, 0, 0, 1] == 3
    assert source.normalize(source.train.x).mean().item() == pytest.approx(0, abs=1e-6)


def test_natural_owners_and_classes():
    source = load("natural", init_args={"owner": [0, 0, 1, 2], "classes": ["a", "b"]})
    assert source.owner.tolist() == [0, 0, 1, 2]
    assert source.num_classes == 2


@pytest.mark.parametrize(
    ("owner", "held", "clients"),
    [
        (["ann", "bob", "", "ann", "cy"], ["cy", "dan"], "ann, bob, cy"),
        ([20, 10**12, -1, 20, 2 * 10**12], [2 * 10**12, 3], "20, 1000000000000, 2000000000000"),
        (np.array(["ann", "bob", "", "ann", "cy"], dtype=object), ["cy", ""], "ann, bob, cy"),
    ],
)
def test_owners_may_be_names_or_any_numbers(owner, held, clients, caplog):
    sets = natural(owner), natural(held)
    with caplog.at_level("INFO", "flsel"):
        source = load_object(sets, "mine", download=False)
    assert source.owner.tolist() == [0, 1, -1, 0, 2]
    assert source.test_owner.tolist() == [2, -1]
    assert f"owner of mine: 3 clients, numbered from 0 in the order {clients}" in caplog.text


def test_names_of_owners_are_sorted_as_people_count(caplog):
    sets = natural(["s10", "s9", "s2", "s2", "s1"]), natural(["s10", "s1"])
    with caplog.at_level("INFO", "flsel"):
        source = load_object(sets, "mine", download=False)
    assert source.owner.tolist() == [3, 2, 1, 1, 0]
    assert source.test_owner.tolist() == [3, 0]
    assert "in the order s1, s2, s9, s10" in caplog.text


@pytest.mark.parametrize("classes", [np.int64(4), torch.tensor(4)])
def test_classes_may_be_counted_by_a_library(classes):
    assert load("counted", init_args={"classes": classes}).num_classes == 4


def test_data_module():
    Module.prepared = False
    source = load("Module", init_args={"size": 10})
    assert [len(part) for part in (source.train, source.validation, source.test)] == [5, 3, 2]
    assert not Module.prepared
    rows = torch.cat([source.train.x, source.validation.x, source.test.x])
    assert torch.equal(rows.sort(0).values, X[:10].sort(0).values)
    load("Module", download=True)
    assert Module.prepared


def test_data_module_with_training_data_only():
    source = load("TrainOnly")
    assert (source.test, source.validation, source.num_classes) == (None, None, 5)


def test_data_module_that_needs_its_download():
    Unprepared.prepared = False
    with pytest.raises(
        UserError,
        match=r"\(data\.download: true .*\): Unprepared.setup raised FileNotFoundError: no files yet \(",
    ):
        load("Unprepared")
    assert len(load("Unprepared", download=True).train) == 7


def test_data_module_with_a_list_of_loaders():
    with pytest.raises(UserError, match=r"ManyLoaders\.test_dataloader must return one DataLoader, got 2 of"):
        load("ManyLoaders")


@pytest.mark.parametrize(("chooses", "kind"), [("again", "RandomSampler"), ("in batches", "list")])
def test_a_loader_that_chooses_is_refused(chooses, kind):
    assert len(load("Chosen").train) == len(X)
    with pytest.raises(UserError, match=rf"Chosen\.train_dataloader chooses examples by {kind}, which draws"):
        load("Chosen", init_args={"chooses": chooses})


def test_a_sampler_of_a_part_chooses_the_part():
    assert torch.equal(load("Chosen", init_args={"chooses": "some"}).train.x, X[:5])


def test_a_data_module_that_changes_batches_is_kept():
    assert isinstance(load("Transferred").hooks, Transferred)
    assert load("TrainOnly").hooks is None


def test_attributes_are_found_behind_parts_and_sums():
    whole = Listed([*zip(X, Y, strict=True)], owner=np.arange(12) % 4)
    source = load_object(
        ConcatDataset([Subset(whole, [5, 2, 1]), Subset(whole, [0, 3])]), "x", download=False
    )
    assert source.owner.tolist() == [1, 2, 1, 0, 3]


def test_what_a_tensor_dataset_makes_of_its_tensors_counts():
    assert torch.equal(load("doubled").train.x, 2 * X)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("text", "must return a LightningDataModule, a Dataset .*, or Datasets as .*, got str"),
        ("none", "got NoneType"),
        ("quadruple", "got tuple"),
        ("uneven arrays", "returned 3 inputs and 2 labels"),
        ("arrays of objects", "returned arrays of no numbers: TypeError: can't convert"),
        (
            "stream",
            "is an IterableDataset, Stream, which has no positions to deal to clients: let a map",
        ),
        ("dict", "must be a map-style Dataset, got dict"),
        ("empty", "the training set has no examples"),
        ("two labels", r"has the targets label and y: set data.columns .* such as \{target: label\}"),
        ("ragged", "example 0 has an input that is no array: setting an array element with a sequence"),
        ("wide", "example 0 must hold numbers of at most 64 bits, got dtype float128"),
        ("beyond int64", "must hold whole numbers below 2.63, got 18446744073709551615"),
        ("beyond memory", "the training set would take .* GiB of memory, and this process may have"),
        ("ragged owner", "owner of .* is no list of numbers or names"),
        ("many classes", "the training set has the label 1000000000 among 2 examples; number the classes"),
        ("shapes", r"example 1 is \[3\] torch.float32 with .*, unlike the first, \[2\]"),
        ("dtypes", "example 1 is .* torch.int64, unlike"),
        ("negative", "has the label -1"),
        ("beyond", r"has the label 4, but labels must be in 0..3"),
        ("classes", "num_classes of .* must be a positive number, got 'ten'"),
        ("nan", "NaN or infinite inputs, first in example 1"),
        ("objects", "example 0 must hold numbers"),
        ("test shape", r"the test set has inputs \[3\]"),
        ("test label", "the test set has the label 3"),
        ("owner length", "owner of .* must be one client, a number"),
        ("owner negative", "owner of .* must be one client, a number"),
        ("owner fraction", "owner of .* must be one client, a number"),
        ("owner of nobody", "owner of .* must name a client"),
        ("owner of two kinds", "owner of .* must be names or numbers alike"),
    ],
)
def test_no_classification_dataset(what, message):
    with pytest.raises(UserError, match=message) as error:
        load("broken", init_args={"what": what})
    assert f"{__name__}.broken" in str(error.value)


def test_a_typo_in_the_arguments_names_the_accepted_ones():
    with pytest.raises(UserError, match=r"data.init_args do not fit .*pair: .*'row'; it accepts rows, test"):
        load("pair", init_args={"row": 3})
    with pytest.raises(UserError, match="missing a required argument: 'owner'"):
        load("natural")


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("raise", r"fail raised RuntimeError: the disk is gone \(test_custom_data.py, line \d+\)\.$"),
        ("exit", r"fail raised SystemExit: 3 \(test_custom_data.py, line \d+\)\.$"),
        (
            "item",
            r"example 3 cannot be read: Fails.__getitem__ raised KeyError: 3 \(test_custom_data.py, line",
        ),
        ("length", r"Fails.__len__ raised ZeroDivisionError: division by zero \(test_custom_data.py, line"),
    ],
)
def test_a_dataset_that_raises(what, reason):
    with pytest.raises(UserError, match=reason):
        load("fail", init_args={"what": what})


@pytest.mark.parametrize("names", [("image", "label"), ("x", "y"), ("anything", "target")])
def test_examples_that_are_mappings(names):
    examples = [dict(zip(names, example, strict=True)) for example in single().examples]
    MAPPINGS[:] = examples
    source = load("mappings")
    assert source.train.x.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert source.train.y.tolist() == [0, 1, 2]


def test_parts_by_name_are_one_each_and_others_are_named(caplog):
    part = TensorDataset(torch.zeros(3, 2), torch.tensor([0, 1, 2]))
    found = load_object({"train": part, "dev": part, "extra": part}, "parts", download=False)
    assert (len(found.validation), found.test) == (3, None)
    assert "parts: not used: extra" in caplog.text
    with pytest.raises(
        UserError, match="parts must return one validation set, got a mapping of train, dev, val"
    ):
        load_object({"train": part, "dev": part, "val": part}, "parts", download=False)


def test_texts_of_a_mapping_are_left_out_with_a_line(caplog):
    MAPPINGS[:] = [{"image": torch.zeros(2), "label": 0, "path": "a.png", "note": None}]
    assert load("mappings").train.x.shape == (1, 2)
    assert "not used: the texts path, note" in caplog.text


def test_all_numbers_of_a_mapping_are_inputs():
    ids = [{"input_ids": torch.full((2,), n), "attention_mask": torch.ones(2), "label": n} for n in (0, 1)]
    MAPPINGS[:] = ids
    source = load("mappings")
    assert {name: x.tolist() for name, x in source.train.x.items()} == {
        "input_ids": [[0, 0], [1, 1]],
        "attention_mask": [[1, 1], [1, 1]],
    }
    assert source.form.joined(source.train.x, source.train.y).keys() == ids[0].keys()


@pytest.mark.parametrize(
    ("what", "outputs"), [("regression", 1), ("vector labels", 3), ("float tensors", 1), ("two inputs", None)]
)
def test_targets_and_inputs_of_any_kind(what, outputs):
    source = load("broken", init_args={"what": what})
    assert source.outputs == outputs
    assert source.train.labels is None or what == "two inputs"


class Loads(TrainOnly):
    def __init__(self, kind=DataLoader, **options):
        super().__init__()
        self.kind, self.options = kind, options

    def train_dataloader(self):
        return self.kind(TensorDataset(X, Y), **self.options)


class Weighs(DataLoader):
    def __iter__(self):
        return iter([])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (
            {"batch_size": 5, "shuffle": True, "drop_last": True},
            "not used: drop_last (of the last 2 examples of each epoch), batch_size 5; clients shuffle",
        ),
        ({"batch_size": 3}, "not used: batch_size 3, shuffle false; clients shuffle"),
        ({"batch_size": None, "shuffle": True}, ""),
    ],
)
def test_settings_of_a_loader_that_are_not_used_are_named(options, named, caplog):
    globals()["loads"] = lambda: Loads(**options)
    assert len(load("loads").train) == len(X)
    assert bool(caplog.text) == bool(named)
    assert named in caplog.text


def test_a_loader_with_an_iteration_of_its_own_is_refused():
    globals()["loads"] = lambda: Loads(Weighs)
    with pytest.raises(UserError, match="train_dataloader must return a plain DataLoader, got Weighs"):
        load("loads")


def test_three_datasets():
    source = load("triple")
    assert [len(part) for part in (source.train, source.validation, source.test)] == [12, 3, 2]
    source = load("triple", init_args={"validation": False})
    assert (source.validation, len(source.test)) == (None, 2)


@pytest.mark.parametrize("name", [f"{__name__}.nothing", "no_such_package.Thing"])
def test_an_unknown_import_path(name):
    with pytest.raises(UserError, match=f"data.name cannot be {name}: "):
        load_source(DataConfig(name=name), clients=None, seed=0)


def test_an_import_path_to_something_else():
    with pytest.raises(UserError, match=r"must be a class or a function, and .*not_callable is a int"):
        load("not_callable")
