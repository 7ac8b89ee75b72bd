"""How well do HiCS-FL's estimated entropies follow the true ones? Correlations over the clients.

    python benchmarks/entropy.py --seeds 1 2 3 --data-root DIR --out runs/entropy

Every client trains once: in the first ceil(N/K) rounds, as in the paper, or all at the initial model, which
tells what the model's progress between two clients' turns costs. Updates of the output layer are kept in
``--out``.
"""

from __future__ import annotations

import math
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from pages import markdown, options

PAPERS = Path(__file__).resolve().parents[1] / "configs" / "papers"
CONFIGS = {
    "SGD 0.001, momentum 0.9": "hics/fashion_mnist.yaml",
    "Adam 0.001": "hics/fashion_mnist_adam.yaml",
    "SGD, small network": "hics/fashion_mnist_small.yaml",
}
TEMPERATURES: tuple[float | None, ...] = (0.0005, 0.001, 0.0015, 0.0025, 0.005, 0.01, 0.05, None)
SIGNALS = ("bias", "weight_mean")


@dataclass(frozen=True)
class Measured:
    """What one run tells of the clients: label counts and the output layer's signals, ``[N, C]`` each."""

    labels: np.ndarray
    signals: dict[str, np.ndarray]

    def correlations(self, signal: str, temperature: float | None) -> tuple[float, float]:
        """Return Spearman's and Pearson's correlation; NaN where all estimates are equal; None is auto."""
        from scipy.stats import pearsonr, spearmanr

        from flsel.selectors._hics import auto_temperature, entropy, label_entropy

        values = self.signals[signal]
        estimated = entropy(values, auto_temperature(values) if temperature is None else temperature)
        if np.ptp(estimated) == 0:
            return math.nan, math.nan
        true = label_entropy(self.labels)
        return float(spearmanr(estimated, true).statistic), float(pearsonr(estimated, true).statistic)


def measure(config_file: Path, *, seed: int, together: bool, data_root: str | None, path: Path) -> Measured:
    """Let every client train once and keep what the output layer's updates tell.

    Args:
        config_file: The run's settings.
        seed: Its seed.
        together: All clients start from the initial model; else in rounds of K, as the selector warms up.
        data_root: Folder of the datasets; None is the config's.
        path: Where the result is kept; read from there if it exists.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **_train(config_file, seed, together, data_root))
    with np.load(path) as kept:
        return Measured(kept["labels"], {signal: kept[signal] for signal in SIGNALS})


def _train(config_file: Path, seed: int, together: bool, data_root: str | None) -> dict[str, np.ndarray]:
    from flsel.config import RunConfig
    from flsel.runner.build import build
    from flsel.selectors.hics import HiCS

    config = RunConfig.from_file(config_file)
    data = config.data if data_root is None else replace(config.data, root=data_root)
    clients_per_round = (config.clients or 1) if together else config.clients_per_round
    rounds = math.ceil((config.clients or 1) / clients_per_round)
    # One round more than is executed: the last one ends with an evaluation.
    config = replace(
        config,
        seed=seed, rounds=rounds + 1, clients_per_round=clients_per_round, data=data,
        selector=HiCS(signal="layer"),
        evaluation=replace(config.evaluation, every=rounds + 1), accelerator="cpu", quiet=True,
    )  # fmt: skip
    server = build(config).server
    for _ in range(rounds):
        server.step()
    state = server.selector.state_dict()
    labels = server.federation.labels.numpy()
    bias = state["layer_"][:, -labels.shape[1] :]
    return {"labels": labels, "weight_mean": state["signal_"].numpy(), "bias": bias.numpy()}


def entropy_table(found: dict[tuple[str, bool], list[Measured]]) -> str:
    """Lay Spearman's / Pearson's correlation out, mean over seeds (± standard deviation of Spearman's)."""
    names = ["auto" if t is None else f"{t:g}" for t in TEMPERATURES]
    lines = []
    for (name, together), runs in found.items():
        start = "the initial model" if together else "ten rounds' models"
        for signal in SIGNALS:
            cells = [_correlation_cell(runs, signal, t) for t in TEMPERATURES]
            lines.append([name, start, signal, *cells])
    return markdown(["optimizer", "clients start from", "signal", *names], lines) + "\n"


def _correlation_cell(runs: list[Measured], signal: str, temperature: float | None) -> str:
    both = np.array([run.correlations(signal, temperature) for run in runs])
    if np.isnan(both).any():
        return "all equal"
    spread = f" ± {both[:, 0].std(ddof=1):.2f}" if len(both) > 1 else ""
    return f"{both[:, 0].mean():.2f}{spread} / {both[:, 1].mean():.2f}"


def main() -> None:
    """Measure; print the table."""
    parser = options(__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one thread each")
    parser.add_argument("--data-root", default=os.environ.get("FLSEL_DATA"))
    parser.add_argument("--out", type=Path, default=Path("runs/entropy"))
    parser.add_argument("--show", action="store_true", help="run nothing")
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = [(name, together, seed) for seed in chosen.seeds for name in CONFIGS for together in (False, True)]
    plan = [job for job in jobs if not chosen.show or _path(chosen.out, job).exists()]
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        measured = list(pool.map(partial(_job, chosen.data_root, chosen.out), plan))
    found: dict[tuple[str, bool], list[Measured]] = {}
    for (name, together, _), result in zip(plan, measured, strict=True):
        found.setdefault((name, together), []).append(result)
    print(entropy_table(found))


def _path(out: Path, job: tuple[str, bool, int]) -> Path:
    name, together, seed = job
    kind = "together" if together else "rounds"
    return out / f"{Path(CONFIGS[name]).stem}-{kind}-s{seed}.npz"


def _job(data_root: str | None, out: Path, job: tuple[str, bool, int]) -> Measured:
    name, together, seed = job
    config = PAPERS / CONFIGS[name]
    return measure(config, seed=seed, together=together, data_root=data_root, path=_path(out, job))


if __name__ == "__main__":
    main()
