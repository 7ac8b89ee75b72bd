"""Tasks of many kinds, each beside FedAvg by a loop of a few lines, and under selectors of four kinds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from runs import built, settings
from torch import Tensor, nn, optim
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torchvision.transforms import v2

from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.data.data_config import DataConfig
from flsel.devices import LogNormal
from flsel.errors import UserError
from flsel.local.dropout import visit_key
from flsel.partition import IID, Dirichlet
from flsel.rng import repeatable, seed_layers, torch_seed
from flsel.selectors import FedGS, Oort, PowD, Uniform

SIZE, CLIENTS, LR = 48, 4, 0.1
DRAW = torch.Generator().manual_seed(4)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW)


def whole(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, generator=DRAW)


class Rows:
    """A data set of rows, whose sites stand for labels."""

    site = tuple(n % 3 for n in range(SIZE))

    def __init__(self, row: Callable[[int], Any], collate: Any = None) -> None:
        self.row = row
        if collate is not None:
            self.collate_fn = collate

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, at: int) -> Any:
        return self.row(at)


X, TEXT, LABELS, LENGTHS = normal(SIZE, 6), whole(7, SIZE, 6), whole(3, SIZE), whole(3, SIZE) + 1
IMAGES, PIXELS = normal(SIZE, 3, 6, 6), whole(2, SIZE, 6, 6)
BYTES = whole(256, SIZE, 3, 6, 6).to(torch.uint8)
MASK = (TEXT > 2).long() + 1
BOXES = [normal(int(n), 4) for n in LENGTHS]
NODES = [normal(int(n) + 1, 5) for n in LENGTHS]


class Step(LightningModule):
    """Takes steps by SGD."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        return optim.SGD(self.parameters(), lr=LR)


class NextCharacter(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.embed, self.cells = nn.Embedding(7, 4), nn.LSTM(4, 5, batch_first=True)
        self.out = nn.Linear(5, num_classes)

    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.cells(self.embed(text))[0])


class Residual(nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(3, 3, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(3), nn.BatchNorm2d(3)])
        self.out = nn.Linear(3, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norms[0](self.first(x)).relu()
        return self.out((x + self.norms[1](self.second(inner))).relu().mean(dim=(2, 3)))


class Segments(Step):
    """Judges itself by the Dice score of the pixels of class 1."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Conv2d(3, 1, 3, padding=1)

    def loss(self, batch: Any) -> Tensor:
        return binary_cross_entropy_with_logits(self.net(batch[0])[:, 0], batch[1].float())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        found = self.net(batch[0])[:, 0] > 0
        both = (found & (batch[1] == 1)).sum()
        self.log("dice", 2 * both / (found.sum() + batch[1].sum()))


class Adapted(Step):
    """A frozen layer with factors of low rank beside it; the tokens of a mask are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 3)
        for param in self.parameters():
            param.requires_grad = False
        self.down, self.up = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.zeros(2, 3))

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        mask = batch["attention_mask"][..., None]
        mean = (self.embed(batch["input_ids"]) * mask).sum(dim=1) / mask.sum(dim=1)
        return cross_entropy(self.out(mean) + mean @ self.down @ self.up, batch["label"])


class Momentum(Step):
    """Follows a target network, which itself follows the weights of the first (BYOL)."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.Linear(6, 4), nn.Linear(4, 4)
        self.target = copy.deepcopy(self.net).requires_grad_(False)

    def loss(self, batch: Tensor) -> Tensor:
        return (
            2
            - 2
            * nn.functional.cosine_similarity(
                self.head(self.net(batch)), self.target(batch.roll(1, 1))
            ).mean()
        )

    @torch.no_grad()
    def follow(self) -> None:
        for slow, fast in zip(self.target.parameters(), self.net.parameters(), strict=True):
            slow.mul_(0.9).add_(fast, alpha=0.1)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.follow()


class Adversaries(LightningModule):
    """A generator and a discriminator, which step in turn by manual optimization."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.made, self.judge = nn.Linear(2, 6), nn.Linear(6, 1)

    def judged(self, x: Tensor, real: bool) -> Tensor:
        logits = self.judge(x)
        return binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        first, second = self.optimizers()
        noise = torch.randn(len(batch), 2)
        self.toggle_optimizer(first)
        loss = self.judged(self.made(noise), real=True)
        first.zero_grad()
        self.manual_backward(loss)
        first.step()
        self.untoggle_optimizer(first)
        self.log_dict({"g_loss": loss}, prog_bar=True)
        second.zero_grad()
        self.manual_backward(
            self.judged(batch, real=True) + self.judged(self.made(noise).detach(), real=False)
        )
        second.step()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("judged", self.judged(batch, real=True))

    def configure_optimizers(self) -> Any:
        return [optim.SGD(part.parameters(), lr=LR) for part in (self.made, self.judge)], []


class Linear(Step):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def loss(self, batch: Any) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])


class Scheduled(Linear):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class Detects(Step):
    """Finds the mean of an image's boxes, of which there are several."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 4)

    def loss(self, batch: Any) -> Tensor:
        found = self.net(batch[0].mean(dim=(1, 2)))
        return torch.stack(
            [(one - each["boxes"]).square().mean() for one, each in zip(found, batch[1], strict=True)]
        ).mean()


class Graphs(Step):
    """Sums what the nodes of a graph get from the one before them."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5, 3)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        source, target = batch["edge_index"]
        x = batch["x"].index_add(0, target, batch["x"][source])
        return self.net(x).new_zeros(int(batch["batch"][-1]) + 1, 3).index_add(0, batch["batch"], self.net(x))

    def loss(self, batch: Mapping[str, Tensor]) -> Tensor:
        return cross_entropy(self(batch), batch["y"])


def with_boxes(items: list[Any]) -> Any:
    return torch.stack([image for image, _ in items]), tuple(boxes for _, boxes in items)


def graphs(items: list[Any]) -> dict[str, Tensor]:
    sizes = torch.tensor([len(item["x"]) for item in items])
    starts = sizes.cumsum(0) - sizes
    edges = [
        torch.stack([torch.arange(n - 1), torch.arange(1, n)]) + at
        for n, at in zip(sizes.tolist(), starts, strict=True)
    ]
    return {
        "x": torch.cat([item["x"] for item in items]), "edge_index": torch.cat(edges, dim=1),
        "batch": torch.repeat_interleave(torch.arange(len(items)), sizes),
        "y": torch.tensor([item["y"] for item in items]),
    }  # fmt: skip


def plain(module: Any, batches: list[Any], loss: Any = None) -> None:
    """The loop that most kinds share."""
    optimizer = optim.SGD([param for param in module.parameters() if param.requires_grad], lr=LR)
    for batch in batches:
        optimizer.zero_grad()
        (module.loss(batch) if loss is None else loss(module, *batch)).backward()
        optimizer.step()


def following(module: Any, batches: list[Any]) -> None:
    for batch in batches:
        plain(module, [batch])
        module.follow()


def adversarial(module: Any, batches: list[Any]) -> None:
    first, second = (optim.SGD(part.parameters(), lr=LR) for part in (module.made, module.judge))
    for batch in batches:
        noise = torch.randn(len(batch), 2)
        first.zero_grad()
        module.judged(module.made(noise), True).backward()
        first.step()
        second.zero_grad()
        (module.judged(batch, True) + module.judged(module.made(noise).detach(), False)).backward()
        second.step()


def halving(module: Any, batches: list[Any]) -> None:
    optimizer = optim.SGD(module.parameters(), lr=LR)
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = LR * 0.5**step
        optimizer.zero_grad()
        module.loss(batch).backward()
        optimizer.step()


def clipped(module: Any, batches: list[Any]) -> None:
    optimizer = optim.SGD(module.parameters(), lr=LR)
    for batch in batches:
        optimizer.zero_grad()
        module.loss(batch).backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.05)
        optimizer.step()


def accumulated(module: Any, batches: list[Any]) -> None:
    optimizer = optim.SGD(module.parameters(), lr=LR)
    for step, batch in enumerate(batches, 1):
        (module.loss(batch) / 2).backward()
        if step % 2 == 0 or step == len(batches):
            optimizer.step()
            optimizer.zero_grad()


def tokens(net: nn.Module, text: Tensor, after: Tensor) -> Tensor:
    return cross_entropy(net(text).flatten(0, 1), after.flatten())


def labelled(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(net(x), y)


def squares(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (net(x)[:, 0] - y).square().mean()


@dataclass
class Kind:
    """A task.

    Attributes:
        rows: The data set.
        model: The model.
        by_hand: Trains a model on batches.
        data, changes, local: Further settings.
        losses: Whether clients can be asked for losses.
    """

    rows: Rows
    model: Any
    by_hand: Callable[[Any, list[Any]], None] = plain
    data: Mapping[str, Any] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    losses: bool = True


CLASSES = Rows(lambda n: (X[n], int(LABELS[n])))
FLIP = (partial(v2.RandomHorizontalFlip, p=0.5),)
KINDS = {
    "next character": Kind(
        Rows(lambda n: (TEXT[n], TEXT[n].roll(-1))), NextCharacter, partial(plain, loss=tokens),
        changes={"loss": nn.CrossEntropyLoss},
    ),
    "factors and masks": Kind(
        Rows(lambda n: {"input_ids": TEXT[n], "attention_mask": MASK[n], "label": int(LABELS[n])}), Adapted
    ),
    "residual and BatchNorm, augmented": Kind(
        Rows(lambda n: (BYTES[n], int(LABELS[n]))), Residual, partial(plain, loss=labelled), {"augment": FLIP}
    ),
    "regression by strata": Kind(
        Rows(lambda n: (X[n], float(X[n].sum()))), partial(nn.Linear, 6, 1), partial(plain, loss=squares),
        {"strata": 4}, {"loss": nn.MSELoss, "partition": Dirichlet(alpha=1.0)},
    ),
    "segmentation by Dice": Kind(
        Rows(lambda n: (IMAGES[n], PIXELS[n])), Segments, plain, {}, {"evaluation": EvaluationConfig(
            score="test/dice", better="higher")},
    ),
    "momentum target": Kind(Rows(lambda n: X[n]), Momentum, following),
    "adversaries": Kind(
        Rows(lambda n: X[n]), Adversaries, adversarial, losses=False,
        changes={"evaluation": EvaluationConfig(score="test/judged", better="lower")},
    ),
    "schedule over steps": Kind(CLASSES, Scheduled, halving),
    "clipping": Kind(CLASSES, Linear, clipped, local={"trainer": {"gradient_clip_val": 0.05}}),
    "accumulated gradients": Kind(
        CLASSES, Linear, accumulated, local={"trainer": {"accumulate_grad_batches": 2}}
    ),
    "detection": Kind(
        Rows(lambda n: (IMAGES[n], {"boxes": BOXES[n]}), with_boxes), Detects, data={"workers": 0}
    ),
    "graphs": Kind(
        Rows(lambda n: {"x": NODES[n], "y": int(LABELS[n])}, graphs), Graphs, data={"workers": 0}
    ),
}  # fmt: skip


def config(folder: Path, kind: Kind, **changes: Any) -> Any:
    data = {} if "strata" in kind.data else {"groups": "site"}
    given = {
        "data": DataConfig(name=kind.rows, validation=0.0, server=0.1, test=0.2, **{**data, **kind.data}),
        "partition": IID(), "clients": CLIENTS, "clients_per_round": CLIENTS, "model": kind.model,
        "local": LocalConfig(batch_size=4, epochs=1, optimizer=None, **kind.local), **kind.changes,
    }  # fmt: skip
    return settings(folder, **{**given, **changes})


def batches_of(program: Any, client: int) -> Iterator[Any]:
    for step, row in enumerate(program.batches(client, 0)):
        seed = torch_seed(program.seed, "augment", 0, client, step)
        yield program.as_given(program.batch(row[row >= 0], seed))


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_is_the_mean_of_clients_trained_by_hand(kind, tmp_path):
    made = built(config(tmp_path, KINDS[kind]))
    server, program = made.server, made.program
    start = {name: value.clone() for name, value in server.params.items()}
    sizes, ends = program.population.sizes.double(), []
    for client in range(CLIENTS):
        program.load(start)
        module, batches = copy.deepcopy(program.model).train(), list(batches_of(program, client))
        with repeatable(0):
            seed_layers(program.device, visit_key(program.seed, 0, client))
            KINDS[kind].by_hand(module, batches)
        ends.append({name: module.state_dict()[name] for name in start})
    program.load(start)
    server.step()
    for name, value in server.params.items():
        mean = sum(share * end[name].double() for share, end in zip(sizes / sizes.sum(), ends, strict=True))
        torch.testing.assert_close(value.double(), mean, rtol=1e-5, atol=1e-6)
    assert any(not torch.allclose(value, start[name], atol=1e-3) for name, value in server.params.items())


SELECTORS = [Uniform(), PowD(d=3), FedGS(), Oort()]


@pytest.mark.parametrize("kind", KINDS)
def test_selectors_of_four_kinds_choose_its_clients(kind, tmp_path):
    for selector in SELECTORS:
        run = config(tmp_path, KINDS[kind], selector=selector, clients_per_round=2, devices=LogNormal())
        if not KINDS[kind].losses and isinstance(selector, PowD | Oort):
            with pytest.raises(UserError, match="cannot be asked outside of training"):
                built(run).server.step()
            continue
        server = built(run).server
        chosen = {client for _ in range(2) for path in server.step().outcome.plan.paths for client in path}
        assert chosen <= {*range(CLIENTS)}
        assert math.isfinite(server.evaluate(torch.empty(0, dtype=torch.int64))[server.score.column])
