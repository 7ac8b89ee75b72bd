"""Examples that are read when they are needed, and images that are augmented: the same in every backend."""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule
from runs import built, differ_when_resumed, settings
from torch import Tensor, nn, optim
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from flsel.config.groups import LocalConfig
from flsel.data import check_arrays
from flsel.data.augment import Augment
from flsel.data.data_config import DataConfig
from flsel.errors import UserError
from flsel.partition import IID, Dirichlet
from flsel.rng import repeatable, torch_seed

SIZE, CLIENTS = 48, 4
DRAW = torch.Generator().manual_seed(5)
IMAGES = torch.randint(0, 256, (SIZE, 3, 8, 8), dtype=torch.uint8, generator=DRAW)
LABELS = torch.randint(0, 3, (SIZE,), generator=DRAW)
FLIP = (partial(v2.RandomCrop, size=8, padding=2), v2.RandomHorizontalFlip)


class Drawn:
    """Adds noise of every global generator whenever an example is read."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        noise = torch.rand(()) + random.random() + float(np.random.random())
        return IMAGES[at].flatten() / 255 + noise, int(LABELS[at])


class Rows:
    """Gives each image with its label."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return self.images[at], int(LABELS[at])


class Sentences:
    """Has examples of several lengths, of which its loader makes batches."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, at: int) -> dict[str, Any]:
        return {"ids": torch.arange(at % 5 + 1), "label": int(LABELS[at])}


def padded(items: list[dict[str, Any]]) -> dict[str, Any]:
    ids = pad_sequence([item["ids"] for item in items], batch_first=True)
    return {"ids": ids, "label": torch.tensor([item["label"] for item in items])}


class Module(LightningDataModule):
    def setup(self, stage: str) -> None:
        pass

    def train_dataloader(self) -> Any:
        return DataLoader(Sentences(), batch_size=4, shuffle=True, collate_fn=padded)


class Bag(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 4), nn.Linear(4, num_classes)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.embed(ids).sum(dim=1))


def flat() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


def config(folder: Path, data: DataConfig, model: Any = flat, backend: str = "auto", **changes: Any) -> Any:
    given = {
        "data": data, "partition": IID(), "clients": CLIENTS, "clients_per_round": 2, "model": model,
        "rounds": 3,
        "local": LocalConfig(batch_size=5, epochs=2, backend=backend, optimizer=partial(optim.SGD, lr=0.05)),
    }  # fmt: skip
    return settings(folder, **{**given, **changes})


def later(dataset: Any, workers: int = 0, **changes: Any) -> DataConfig:
    return DataConfig(name=dataset, workers=workers, server=0.0, validation=0.1, test=0.2, **changes)


def trained(run: Any, rounds: int = 2) -> dict[str, Tensor]:
    server = built(run).server
    for _ in range(rounds):
        server.step()
    return dict(server.params) | {"loss": torch.tensor(server.evaluate(torch.zeros(0).long())["test/loss"])}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("data", [later(Drawn()), DataConfig(name=(IMAGES, LABELS), augment=FLIP)])
def test_results_depend_neither_on_the_backend_nor_on_earlier_draws(data, tmp_path):
    first = trained(config(tmp_path, data))
    torch.rand(7)
    random.random()
    assert same(first, trained(config(tmp_path, data)))
    assert same(first, trained(config(tmp_path, data, backend="lightning")))
    with pytest.raises(UserError, match=r"cannot train this model: (data\.augment|its examples are read)"):
        trained(config(tmp_path, data, backend="compiled"))


def test_results_do_not_depend_on_processes(tmp_path):
    assert same(trained(config(tmp_path, later(Drawn())), 1), trained(config(tmp_path, later(Drawn(), 2)), 1))


@pytest.mark.parametrize("data", [later(Drawn()), DataConfig(name=(IMAGES, LABELS), augment=FLIP)])
def test_a_resumed_run_is_the_same(data, tmp_path):
    assert differ_when_resumed(config(tmp_path, data), [2]) == []


def test_examples_are_read_as_they_are_drawn_by_seed_round_client_step_and_place(tmp_path):
    program = built(config(tmp_path, later(Drawn()))).program
    seed = torch_seed(program.seed, "augment", 1, 2, 3)
    places = program.population.shards[2][:4]
    x, y = program.batch(places, seed)
    for at, place in enumerate(places.tolist()):
        with repeatable(torch_seed(seed, "example", at)):
            image, label = Drawn()[place]
        assert torch.equal(x[at], image)
        assert y[at] == label
    assert not torch.equal(x, program.batch(places, seed + 1)[0])


def test_augmented_images_are_those_of_the_transforms(tmp_path):
    program = built(config(tmp_path, DataConfig(name=(IMAGES, LABELS), augment=FLIP))).program
    places = program.population.shards[1][:6]
    with repeatable(11):
        by_hand = [
            v2.RandomHorizontalFlip()(v2.RandomCrop(8, padding=2)(IMAGES[at])) for at in places.tolist()
        ]
    found = program.batch(places, 11)[0]
    assert torch.equal(found, program.population.normalize(torch.stack(by_hand)))
    plain = program.batch(places)[0]
    assert torch.equal(plain, program.population.normalize(IMAGES[places]))


def test_pixels_go_with_their_image():
    x = torch.arange(64).view(1, 1, 8, 8).float()
    found, mask = Augment([v2.RandomHorizontalFlip(p=1.0)])(x, x[:, 0].long(), 0)
    assert torch.equal(found[:, 0].long(), mask)
    assert torch.equal(found, x.flip(-1))


@pytest.mark.parametrize("partition", [IID(), Dirichlet()])
def test_a_collate_fn_makes_batches_of_several_lengths(partition, tmp_path):
    run = config(tmp_path, later(Module()), Bag, partition=partition)
    made = built(run)
    assert torch.equal(made.data.population.y, LABELS)
    before = {name: value.clone() for name, value in made.server.params.items()}
    made.server.step()
    assert not torch.equal(before["out.weight"], made.server.params["out.weight"])
    assert same(
        trained(run), trained(config(tmp_path, later(Module()), Bag, "lightning", partition=partition))
    )


class OwnGenerator(Drawn):
    """Draws from a generator that no seed of flsel's reaches."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return IMAGES[at].flatten() / 255 + float(self.generator.random()), int(LABELS[at])


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        (Drawn(), "example 0 is another one each time it is read"),
        (Module(), "makes batches by a collate_fn"),
    ],
)
def test_examples_that_cannot_be_kept_are_read_when_needed(dataset, reason, caplog):
    with caplog.at_level("INFO", "flsel"):
        found = DataConfig(name=dataset, server=0.0, validation=0.1, test=0.2)
    assert re.search(
        f"data.workers: 0, examples are read when they are needed, since .*{reason}", caplog.text
    )
    assert found.name == later(dataset).name


def test_more_examples_than_memory_holds_are_read_when_needed(monkeypatch, caplog):
    monkeypatch.setattr(check_arrays, "_memory", lambda: 1000)
    with caplog.at_level("INFO", "flsel"):
        found = DataConfig(name=Rows(IMAGES)).name.source.train.x
    assert torch.equal(found[:2].read()[0], IMAGES[:2])
    assert "GiB" in caplog.text


def test_data_sets_of_one_class_and_equal_labels_are_told_apart():
    first, second = (later(Rows(images)).name for images in (IMAGES, IMAGES.flip(-1)))
    assert first != second
    assert first == later(Rows(IMAGES.clone())).name


def test_data_sets_of_several_lengths_need_a_collate_fn(tmp_path):
    with pytest.raises(UserError, match=r"unlike the first, .*: give the data set a method collate_fn"):
        trained(config(tmp_path, DataConfig(name=Sentences()), Bag))


def test_a_data_set_whose_collate_fn_is_none_is_kept():
    plain = Rows(IMAGES)
    plain.collate_fn = None
    assert torch.equal(DataConfig(name=plain).name.source.train.x, IMAGES)


def test_draws_that_no_seed_reaches_are_refused():
    with pytest.raises(UserError, match="must draw from the global generators of torch, numpy and random"):
        later(OwnGenerator())


def test_what_flsel_reads_itself_is_not_read_when_needed():
    with pytest.raises(UserError, match=r"data\.workers must not be set for data\.name mnist"):
        DataConfig(name="mnist", workers=2)


@pytest.mark.parametrize(
    ("augment", "sentence"),
    [
        (
            partial(v2.RandomCrop, size=5),
            r"data\.augment must keep the shape and type of an input, \[3, 8, 8\]",
        ),
        (partial(v2.RandomCrop, size=50), r"data\.augment RandomCrop failed"),
        (partial(v2.ToDtype, torch.float32), r"data\.augment must keep the shape and type"),
    ],
)
def test_a_transform_that_does_not_fit_is_refused(augment, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        built(config(tmp_path, DataConfig(name=(IMAGES, LABELS), augment=(augment,))))
