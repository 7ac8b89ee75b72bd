"""FedGen: losses by hand, rounds written out by the paper's and the code's algorithm, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_objectives import BATCH, LR, STEPS, Net, batches, mean
from runs import built, differ_when_resumed, same, settings
from torch import Tensor, nn, optim
from torch.nn import functional

from flsel.config import RunConfig
from flsel.config.groups import LocalConfig
from flsel.devices import Equal
from flsel.engine.round_job import train
from flsel.errors import DivergedError, UserError
from flsel.models import FedGenCNN
from flsel.objectives import FedAvg, FedGen, Objective
from flsel.objectives import _generator as gen
from flsel.partition import FedGenDirichlet
from flsel.rng import generator
from flsel.selectors.fedcat import FedCat
from flsel.selectors.optimal_sampling import OptimalSampling
from flsel.selectors.uniform import Uniform

NOISE, HIDDEN, GENERATED = 4, 6, 7
SMALL: dict[str, Any] = {"noise": NOISE, "hidden": HIDDEN, "batch": GENERATED, "steps": 3, "lr": 0.05}
PAPER = FedGen(**SMALL, start=0)
CODE = FedGen(
    **SMALL, weight=3.0, latent=2.0, decay=0.9, lr_decay=0.8, ensemble="losses", prior="uniform",
    distribution="uniform",
)  # fmt: skip


def config(folder: Path, objective: Objective, backend: Any = "compiled", **changes: Any) -> RunConfig:
    base = settings(
        folder,
        objective=objective,
        selector=Uniform(weights="equal"),
        model=Net,
        precision="64-true",
        local=LocalConfig(
            batch_size=BATCH, steps=STEPS, optimizer=partial(optim.SGD, lr=LR), backend=backend
        ),
    )
    return replace(base, **changes)


def test_the_diversity_of_two_examples() -> None:
    value = gen.spread(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0, 0.0], [2.0, 4.0]]))
    assert float(value) == pytest.approx(math.exp(-1.5)) == pytest.approx(0.223130, abs=1e-6)


def test_shares_of_labels_begin_with_one() -> None:
    shared = gen.shares(torch.tensor([[3, 0], [0, 1]]))
    assert shared.tolist() == [pytest.approx([0.8, 1 / 3]), pytest.approx([0.2, 2 / 3])]


def test_two_ensembles() -> None:
    logits = torch.tensor([[[2.0, 0.0]], [[0.0, 4.0]]], dtype=torch.float64)
    y, shared = torch.tensor([0]), torch.full((2, 2), 0.5)
    assert float(gen.of_mean_logits(logits, y)) == pytest.approx(1.313262, abs=1e-6)
    assert float(gen.of_each(logits, y, shared)) == pytest.approx(2.072539, abs=1e-6)


def test_each_example_is_weighed_by_its_label() -> None:
    """Where the published code's weights become their mean."""
    logits = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y, counts = torch.tensor([0, 3, 3, 1, 0]), torch.tensor([[4, 0, 0, 1], [0, 2, 2, 0], [1, 1, 0, 9]])
    expected = 0.0
    for k in range(3):
        for b in range(5):
            share = (counts[k, y[b]] + 1).double() / (counts[:, y[b]] + 1).sum()
            expected += float(share * functional.cross_entropy(logits[k, b], y[b])) / 5
    assert float(gen.of_each(logits, y, gen.shares(counts))) == pytest.approx(expected, abs=1e-12)


def test_the_generator_of_the_papers_network() -> None:
    net = gen.fresh(32, 10, 256, torch.zeros(10, 32))
    trained = [value for name, value in net.items() if "running" not in name]
    assert sum(value.numel() for value in trained) == 19_744
    assert sum(value.numel() for value in net.values()) == gen.sizes(32, 10, 256, 32) == 19_744 + 512


class Plain:
    """FedGen as the paper has it, or its code, with torch's own modules and optimizer."""

    def __init__(self, objective: FedGen, classes: int) -> None:
        self.o, self.classes = objective, classes
        self.net = nn.Sequential(
            nn.Linear(NOISE + classes, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 5)
        ).double()
        names = {"0": "hidden", "1": "norm", "3": "out"}
        for name, value in self.net.state_dict().items():
            place, _, leaf = name.partition(".")
            if leaf != "num_batches_tracked":
                value.copy_(objective.generator_[f"{names[place]}.{leaf}"])
        self.adam = optim.Adam(self.net.parameters(), lr=objective.lr, weight_decay=0.01)
        self.prior = np.full(classes, 1 / classes)

    def noise(self, rng: np.random.Generator, *shape: int) -> Tensor:
        normal = self.o.distribution == "normal"
        made = rng.standard_normal(shape, np.float32) if normal else rng.random(shape, np.float32)
        return torch.from_numpy(made).double()

    def make(self, noise: Tensor, y: Tensor) -> Tensor:
        return self.net(torch.cat([noise, functional.one_hot(y, self.classes).double()], dim=1))

    def round(self, run: Any, round: int, glb: list[Tensor], cohort: list[int]) -> list[Tensor]:
        ends, counts = [], torch.zeros(len(cohort), self.classes, dtype=torch.float64)
        fade = self.o.decay**round
        for row, k in enumerate(cohort):
            model = [p.clone() for p in glb]
            rng = generator(0, "objective", round, k)
            labels = torch.from_numpy(rng.choice(self.classes, (STEPS, GENERATED), p=self.prior))
            noise = self.noise(rng, STEPS, GENERATED, NOISE)
            own = self.noise(rng, STEPS, BATCH, NOISE) if self.o.latent else None
            self.net.eval()
            for step, (x, y) in enumerate(batches(run, round, k)):
                leaves = [p.requires_grad_() for p in model]
                z = torch.tanh(x @ leaves[0].T + leaves[1])
                loss = functional.cross_entropy(z @ leaves[2].T + leaves[3], y)
                if round >= self.o.start:
                    made = self.make(noise[step], labels[step]).detach() @ leaves[2].T + leaves[3]
                    loss = loss + self.o.weight * fade * functional.cross_entropy(made, labels[step])
                    if own is not None:
                        other = (self.make(own[step][: len(y)], y) @ leaves[2].T + leaves[3]).detach()
                        scores, target = (z @ leaves[2].T + leaves[3]).log_softmax(1), other.softmax(1)
                        apart = functional.kl_div(scores, target, reduction="batchmean")
                        loss = loss + self.o.latent * fade * apart
                grads = torch.autograd.grad(loss, leaves)
                model = [(p - LR * g).detach() for p, g in zip(leaves, grads, strict=True)]
                counts[row] += torch.bincount(y, minlength=self.classes)
            ends.append(model)
        self.learn(round, ends, counts)
        return mean(ends)

    def learn(self, round: int, ends: list[list[Tensor]], counts: Tensor) -> None:
        total = counts.sum(0).numpy()
        qualified = (total > 0) / (total > 0).sum()
        if self.o.prior == "counts":
            self.prior = qualified = total / total.sum()
        rng = generator(0, "server objective", round)
        self.adam.param_groups[0]["lr"] = self.o.lr * self.o.lr_decay**round
        self.net.train()
        for _ in range(self.o.steps):
            y = torch.from_numpy(rng.choice(self.classes, GENERATED, p=qualified))
            noise = self.noise(rng, GENERATED, NOISE)
            z = self.make(noise, y)
            logits = [z @ end[2].T + end[3] for end in ends]
            if self.o.ensemble == "logits":
                loss = functional.cross_entropy(sum(logits) / len(logits), y)
            else:
                share = (counts + 1) / (counts + 1).sum(0)
                loss = sum(
                    (functional.cross_entropy(own, y, reduction="none") * mine[y]).mean()
                    for own, mine in zip(logits, share, strict=True)
                )
            far = [
                ((noise[i] - noise[j]) ** 2).mean() * (z[i] - z[j]).abs().mean()
                for i in range(GENERATED)
                for j in range(GENERATED)
            ]
            loss = loss + (-sum(far) / len(far)).exp()
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
@pytest.mark.parametrize("objective", [PAPER, CODE], ids=["paper", "code"])
def test_rounds_are_the_papers(tmp_path: Path, objective: FedGen, backend: Any) -> None:
    run = built(config(tmp_path, objective, backend))
    server = run.server
    glb = [value.detach().clone() for value in server.params.values()]
    plain = Plain(server.objective, run.data.population.num_classes)
    while not server.finished:
        cohort = [path[0] for path in server.step().outcome.plan.paths]
        glb = plain.round(run, server.round - 1, glb, cohort)
        for ours, theirs in zip(server.params.values(), glb, strict=True):
            torch.testing.assert_close(ours.data, theirs.detach(), atol=1e-10, rtol=0)
    assert int(plain.net[1].num_batches_tracked) == 3 * server.round


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
@pytest.mark.parametrize("objective", [PAPER, CODE], ids=["paper", "code"])
def test_the_server_resumes_at_every_round(tmp_path: Path, objective: FedGen, backend: Any) -> None:
    settings = config(tmp_path, objective, backend, rounds=4)
    assert differ_when_resumed(settings, range(settings.rounds)) == []


@pytest.mark.parametrize("backend", ["sequential", "compiled"])
@pytest.mark.parametrize(
    "objective", [FedGen(**SMALL, weight=0.0), FedGen(**SMALL, start=99)], ids=["weight", "start"]
)
def test_without_weight_it_is_fedavg_bit_for_bit(tmp_path: Path, objective: FedGen, backend: Any) -> None:
    servers = [built(config(tmp_path, o, backend)).server for o in (objective, FedAvg())]
    while not servers[0].finished:
        plans = [server.step().outcome.plan for server in servers]
        assert plans[0] == plans[1]
    assert same(*({n: value.data for n, value in server.params.items()} for server in servers))


def test_generated_features_move_the_output_layer_alone(tmp_path: Path) -> None:
    program = built(config(tmp_path, PAPER)).program
    drawn = {name: table[0] for name, table in program.drawn(1, 2, 2).items()}
    x, y = program.batch(program.batches(1, 2)[0, :2])
    live = program.trainable()

    def gradients(drawn: dict[str, Tensor]) -> dict[str, Tensor]:
        loss = program.loss(lambda: program.task.training_step((x, y), 0), (x, y), (), drawn)
        return dict(zip(live, torch.autograd.grad(loss, [*live.values()]), strict=True))

    with_them, without = gradients(drawn), gradients({})
    moved = {name for name in live if not torch.equal(with_them[name], without[name])}
    assert moved == {"out.weight", "out.bias"}


def test_steps_of_the_generator_lower_its_loss_on_fixed_output_layers(tmp_path: Path) -> None:
    server = built(config(tmp_path, FedGen(noise=8, hidden=32, batch=64, lr=0.01, weight_decay=0.0))).server
    objective = server.objective
    classes = len(objective.prior_)
    generators = torch.Generator().manual_seed(1)
    weight = torch.randn(3, classes, 5, dtype=torch.float64, generator=generators)
    y = torch.arange(64) % classes
    noise = torch.randn(64, 8, dtype=torch.float64, generator=generators)

    def loss() -> float:
        z = gen.features(objective.generator_, noise, gen.one_hot(y, classes, noise))
        return float(gen.of_mean_logits(z @ weight.transpose(1, 2), y))

    before = loss()
    heads = weight, torch.zeros(3, 1, classes).double()
    for _ in range(60):
        objective._learn(heads, y, noise, (torch.ones(3, classes), 0.01))
    assert loss() < before / 3


def test_what_is_sent_beside_models(tmp_path: Path) -> None:
    server = built(config(tmp_path, PAPER)).server
    plain = built(config(tmp_path, FedAvg())).server
    for each in (server, plain):
        each.step()
    classes, trained = len(server.objective.prior_), int(server.ledger["trainings"])
    assert server.ledger["scalars_up"] == trained * classes
    sent = sum(value.numel() * 8 for value in server.objective.generator_.values()) + 8 * classes
    assert server.ledger["bytes_down"] - plain.ledger["bytes_down"] == trained * sent
    assert server.ledger["bytes_up"] == plain.ledger["bytes_up"]


def test_simulated_devices_take_the_time_to_send_it(tmp_path: Path) -> None:
    slow = {"devices": Equal(1e-30, down=10.0, up=20.0)}
    times = []
    for objective in (PAPER, FedAvg()):
        server = built(config(tmp_path, objective, **slow)).server
        times.append(server.step().outcome.time.seconds)
    classes = server.federation.data.population.num_classes
    down = 8 * gen.sizes(NOISE, classes, HIDDEN, 5) + 8 * classes
    assert times[0] - times[1] == pytest.approx(down / 10 + 8 * classes / 20)


def test_a_stack_of_runs_trains_each_as_it_would_alone(tmp_path: Path) -> None:
    def servers() -> list[Any]:
        made = [config(tmp_path, o, "compiled", seed=s) for o, s in ((PAPER, 0), (PAPER, 1), (FedAvg(), 0))]
        return [built(settings).server for settings in made]

    alone, stacked = servers(), servers()
    for _ in range(3):
        for server in alone:
            server.step()
        jobs = [server.open() for server in stacked]
        for server, job, ends in zip(stacked, jobs, train(jobs, stacked[0].federation.trainer), strict=True):
            server.close(job, ends)
    for one, other in zip(alone, stacked, strict=True):
        for name, value in one.params.items():
            torch.testing.assert_close(other.params[name].data, value.data, atol=1e-12, rtol=0)
        assert one.ledger == other.ledger


class Tempered(Net):
    """Its logits are not what its output layer computes."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Convolved(nn.Module):
    """Its output layer is a convolution."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        assert num_classes is not None
        assert input_shape is not None
        self.out = nn.Conv2d(input_shape[0], num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x[:, :, None, None]).flatten(1)


class Frozen(Net):
    """Its output layer does not train."""

    def __init__(self, num_classes: int | None = None, input_shape: tuple[int, ...] | None = None) -> None:
        super().__init__(num_classes, input_shape)
        self.out.requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Tempered, "Tempered computes them after its output layer: take another model"),
        (Convolved, "the output layer of Convolved is Conv2d: put nn.Linear there"),
        (Frozen, "that of Frozen is frozen: let its parameters train"),
    ],
)
def test_a_model_must_end_in_a_linear_layer(tmp_path: Path, model: Any, said: str) -> None:
    with pytest.raises(UserError, match=rf"FedGen needs a model that ends in a linear layer.*{said}"):
        built(config(tmp_path, PAPER, model=model))


def test_a_generator_of_inputs_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from flsel.models import LogisticRegression

    built(config(tmp_path, PAPER, model=LogisticRegression)).server.step()
    assert "FedGen generates inputs, not features" in caplog.text


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (FedCat(), "objective FedGen keeps state .*; FedCat chains 3 of them"),
        (OptimalSampling(mean=2), "objective FedGen keeps state of every participant"),
    ],
)
def test_a_plan_that_its_state_is_not_defined_for_is_refused(
    tmp_path: Path, selector: Any, said: str
) -> None:
    server = built(config(tmp_path, PAPER, selector=selector)).server
    with pytest.raises(UserError, match=said):
        server.step()


def test_a_generator_that_diverges_ends_the_run(tmp_path: Path) -> None:
    wild = FedGen(**SMALL | {"lr": 1e30, "weight_decay": 1e30})
    server = built(config(tmp_path, wild, precision="32-true")).server
    with pytest.raises(DivergedError, match=r"not finite any more after round 0; lower objective.lr"):
        server.step()


def test_the_split_of_the_papers_tables() -> None:
    labels = np.repeat(np.arange(10), 6000)
    shards = FedGenDirichlet(alpha=0.1)(labels, 20, np.random.default_rng(0))
    held = np.stack([np.bincount(labels[shard], minlength=10) for shard in shards])
    assert held.sum(axis=0).tolist() == [1500] * 10
    assert held.sum(axis=1).min() >= 10
    # A client is closed from 1500 examples on, so that it holds at most one label more.
    assert held.sum(axis=1).max() < 3000
    with pytest.raises(UserError, match=r"partition.min_size must be at most 750"):
        FedGenDirichlet(min_size=800)(labels, 20, np.random.default_rng(0))


def test_the_papers_network_has_features_without_activation() -> None:
    net = FedGenCNN(num_classes=10, input_shape=(1, 28, 28))
    assert isinstance(net.output, nn.Linear)
    assert bool((net.classifier(net.features(torch.randn(8, 1, 28, 28))) < 0).any())
