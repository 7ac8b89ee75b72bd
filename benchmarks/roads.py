"""Which backend, precision and stack is fastest for which model: training alone, without selection."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from measure import add_options, alternate, ratios, spread, table
from settings import image_data, image_run, start
from torch import nn
from trainers import CASES

from flsel.config import RunConfig
from flsel.config.groups import EvaluationConfig, LocalConfig
from flsel.data.data_config import DataConfig
from flsel.engine.round_job import RoundJob, train
from flsel.engine.server import Server
from flsel.local.compiled import pool
from flsel.local.compiled.compiled_trainer import CompiledTrainer
from flsel.models import MLP, LogisticRegression
from flsel.params import Params
from flsel.partition import Natural
from flsel.runner.build import build

# Model, batch size, clients in a round; the arithmetic of a step is their product with the model's size.
SHAPES: Sequence[tuple[str, Callable[..., nn.Module], int, int]] = (
    ("logistic regression", LogisticRegression, 10, 1),
    ("logistic regression", LogisticRegression, 10, 6),
    ("logistic regression", LogisticRegression, 10, 30),
    ("logistic regression", LogisticRegression, 64, 10),
    ("MLP 64", partial(MLP, hidden=[64]), 10, 6),
    ("MLP 64", partial(MLP, hidden=[64]), 32, 10),
    ("MLP 256", partial(MLP, hidden=[256]), 10, 10),
    ("MLP 256", partial(MLP, hidden=[256]), 32, 10),
    ("MLP 1024", partial(MLP, hidden=[1024]), 10, 5),
    ("MLP 1024", partial(MLP, hidden=[1024]), 32, 10),
)
FEDERATIONS = 5
ROUNDS_TO_ACCURACY = 30


def synthetic(model: Callable[..., nn.Module], batch: int, cohort: int, **settings: Any) -> RunConfig:
    """Return the settings of a run of ten local steps on Synthetic(1, 1) with 60 clients."""
    local = LocalConfig(batch_size=batch, steps=10, optimizer=partial(torch.optim.SGD, lr=0.1), **settings)
    return RunConfig(
        seed=1,
        rounds=1000,
        clients=60,
        clients_per_round=cohort,
        data=DataConfig(name="synthetic"),
        partition=Natural(),
        model=model,
        local=local,
        evaluation=EvaluationConfig(every=1000),
        accelerator="cpu",
        quiet=True,
    )


def arithmetic(server: Server, batch: int, cohort: int) -> str:
    """Write the multiplications of a step, forward, in millions."""
    return f"{sum(p.numel() for p in server.params.values()) * batch * cohort / 1e6:.3g}"


def shapes(repeats: int) -> str:
    """Time the backends on every shape; the first call holds tracing."""
    rows = []
    for name, model, batch, cohort in SHAPES:
        base = build(synthetic(model, batch, cohort)).server
        sides: dict[str, Callable[[], object]] = {}
        for backend in ("sequential", "compiled"):
            server = build(synthetic(model, batch, cohort, backend=backend)).server
            sides[backend] = partial(train, [server.open()], server.federation.trainer)
        first = {side: times[0] for side, times in alternate(sides, 1, time.process_time).items()}
        alternate(sides, 2, time.process_time)
        seconds = alternate(sides, repeats, time.process_time)
        own = spread(ratios(seconds["compiled"], seconds["sequential"]))
        saved = median(seconds["sequential"]) - median(seconds["compiled"])
        traced = first["compiled"] - median(seconds["compiled"])
        after = f"{traced / saved:.0f}" if saved > 0 else "never"
        shape = [name, str(batch), str(cohort), arithmetic(base, batch, cohort)]
        rows.append([*shape, f"{1000 * median(seconds['sequential']):.1f} ms", own, after])
    columns = ("model", "batch", "clients", "millions a step", "sequential", "compiled", "pays after")
    return table((*columns[:-1], "tracing is paid back after rounds"), rows)


def together(repeats: int) -> str:
    """Time several federations in one call against one after the other."""
    rows = []
    limit, pool.ARITHMETIC = pool.ARITHMETIC, 10**15
    for name, model, batch, cohort in SHAPES:
        config = synthetic(model, batch, cohort, backend="compiled")
        servers = [build(replace(config, seed=seed)).server for seed in range(FEDERATIONS)]
        jobs, trainer = [server.open() for server in servers], CompiledTrainer()
        own = [server.federation.trainer for server in servers]
        alone = [train([job], each)[0] for job, each in zip(jobs, own, strict=True)]
        gap = max(_gap(one, other) for one, other in zip(alone, train(jobs, trainer), strict=True))
        sides = {"alone": partial(_one_by_one, jobs, own), "together": partial(train, jobs, trainer)}
        alternate(sides, 3, time.process_time)
        seconds = alternate(sides, repeats, time.process_time)
        shape = [name, str(batch), str(cohort), arithmetic(servers[0], batch, cohort)]
        times = [spread([1000 * s for s in seconds["alone"]], " ms", digits=1)]
        pays = "yes" if float(shape[-1]) * 1e6 <= limit else "no"
        rows.append(
            [*shape, *times, spread(ratios(seconds["together"], seconds["alone"])), f"{gap:.0e}", pays]
        )
    columns = ("model", "batch", "clients", "millions a step", "five in turn", "in one call", "apart", "done")
    return table(columns, rows)


def _one_by_one(jobs: list[RoundJob], trainers: list[Any]) -> None:
    for job, trainer in zip(jobs, trainers, strict=True):
        train([job], trainer)


def _gap(one: Params, other: Params) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


PRECISIONS = (
    ("sequential", "32-true"),
    ("compiled", "32-true"),
    ("sequential", "bf16-mixed"),
    ("sequential", "bf16-true"),
    ("compiled", "bf16-true"),
)


def precisions(data: DataConfig, names: Sequence[str], repeats: int, cohort: int | None) -> str:
    """Time the precisions, and measure how far they end from single precision."""
    rows = []
    for name in names:
        case = CASES[name]
        config = image_run(case.model, data, case.local, clients=case.clients, accelerator="cpu")
        few = min(cohort or case.cohort, case.cohort)
        config = replace(config, clients_per_round=few, rounds=1000, evaluation=EvaluationConfig(every=1000))
        sides: dict[str, Callable[[], object]] = {}
        ends: dict[str, Params] = {}
        starts: Params = {}
        for backend, precision in PRECISIONS:
            local = replace(case.local, backend=backend)
            server = build(replace(config, precision=precision, local=local)).server
            job, side = server.open(), f"{backend}, {precision}"
            sides[side] = partial(train, [job], server.federation.trainer)
            (ends[side],) = train([job], server.federation.trainer)
            starts = job.view.params
        seconds = alternate(sides, repeats, time.process_time)
        base = next(iter(sides))
        moved = _norm({n: ends[base][n] - starts[n] for n in starts})
        for side, times in seconds.items():
            apart = _norm({n: ends[side][n] - ends[base][n] for n in starts}) / moved
            drift = f"{100 * apart:.2g} %"
            rows.append(
                [name, side, spread(times, " s", digits=3), spread(ratios(times, seconds[base])), drift]
            )
    return table(
        ("workload", "side", "a round's training", "times the first", "apart, of the way moved"), rows
    )


def _norm(stack: Params) -> float:
    return float(sum(value.double().square().sum() for value in stack.values())) ** 0.5


def accuracies(data: DataConfig) -> str:
    """Train W1 in every precision."""
    case, rows = CASES["W1"], []
    for seed in (1, 2):
        row = [str(seed)]
        for precision in ("32-true", "bf16-mixed", "bf16-true"):
            config = image_run(case.model, data, case.local, clients=case.clients, accelerator="cpu")
            every = EvaluationConfig(every=ROUNDS_TO_ACCURACY)
            config = replace(
                config, seed=seed, rounds=ROUNDS_TO_ACCURACY, precision=precision, evaluation=every
            )
            server = build(config).server
            while not server.finished:
                metrics = server.step().metrics
            assert metrics is not None
            row.append(f"{metrics['test/accuracy']:.4f}, {metrics['test/loss']:.4f}")
        rows.append(row)
    return table(("seed", "32-true", "bf16-mixed", "bf16-true"), rows)


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__)
    add_options(parser)
    parser.add_argument("what", nargs="+", choices=("shapes", "together", "precisions", "accuracies"))
    parser.add_argument("--only", nargs="*", choices=CASES, default=["W1", "W2", "W4"], help="of precisions")
    parser.add_argument("--cohort", type=int, help="of precisions: clients in a round, for a short run")
    chosen = parser.parse_args()
    start(chosen)
    repeats = 3 if chosen.quick else 11
    with tempfile.TemporaryDirectory() as folder:
        data = image_data(chosen.data_root, Path(folder))
        asked: dict[str, Callable[[], str]] = {
            "shapes": partial(shapes, repeats),
            "together": partial(together, repeats),
            "precisions": partial(precisions, data, chosen.only, repeats, chosen.cohort),
            "accuracies": partial(accuracies, data),
        }
        for what in chosen.what:
            print(f"\n{asked[what]()}", flush=True)


if __name__ == "__main__":
    main()
