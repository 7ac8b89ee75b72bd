"""The evidence: experiments make runs that fit, one of them is executed, and estimates are correlated."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from flsel.config import RunConfig
from flsel.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))
import run as benchmarks  # noqa: E402
from entropy import CONFIGS, PAPERS, Measured, entropy_table  # noqa: E402
from evidence import HERE, experiments, main  # noqa: E402
from stopwatch import timed_run  # noqa: E402
from tuned import SPACES, TRIALS, search_grid  # noqa: E402

EXPERIMENTS = experiments()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_of_an_experiment_has_settings_that_fit(name, tmp_path):
    """Every variant and every scenario once: a cell's changes are theirs."""
    grid = EXPERIMENTS[name].grid()
    first = next(grid.cells())
    chosen = [c for c in grid.cells() if c.seed == first.seed and first.scenario == c.scenario]
    chosen += [c for c in grid.cells() if c.seed == first.seed and first.variant == c.variant]
    configs = [grid.run_config(cell, tmp_path) for cell in chosen]
    told = {repr((c.selector, c.objective, c.partition, c.availability, c.local, c.model)) for c in configs}
    assert len(told) > 1
    baseline = EXPERIMENTS[name].judging.get("baseline", "Uniform")
    assert baseline in EXPERIMENTS[name].variants


def test_the_atlas_is_a_balanced_fraction():
    """Every two partitions meet under one common mode, so that their effects can be told apart."""
    pairs = [name.split(", ") for name in EXPERIMENTS["atlas_synthetic"].scenarios]
    modes = {partition: {m for p, m in pairs if p == partition} for partition, _ in pairs}
    assert len(pairs) == 18
    assert len(modes) == 6
    names = list(modes)
    assert all(len(modes[a] & modes[b]) == 1 for a in names for b in names if a < b)
    assert len(set.union(*modes.values())) == 7


@pytest.mark.parametrize("name", ["atlas_synthetic", "atlas_fashion"])
def test_every_selector_is_tuned_with_the_same_budget_and_starts_from_the_atlass_arguments(name):
    atlas = EXPERIMENTS[name].grid()
    usual = {variant.name: variant.changes for variant in atlas.variants}
    grid = search_grid(atlas, atlas.scenarios[0])
    tried = {name: [v for v in grid.variants if v.name.rpartition(" ")[0] == name] for name in SPACES}
    assert {len(variants) for variants in tried.values()} == {TRIALS}
    assert all(variants[0].changes == usual[selector] for selector, variants in tried.items())
    assert all(usual[s].items() <= v.changes.items() for s, variants in tried.items() for v in variants)
    assert all(len({repr(v.changes) for v in variants}) > 1 for variants in tried.values())
    assert not set(grid.seeds) & set(atlas.seeds)
    assert grid.config["data"]["validation"] > 0


def test_an_experiment_is_executed_and_goes_on(tmp_path, monkeypatch, capsys):
    file = tmp_path / "tiny.yaml"
    plain = yaml.safe_load((HERE / "atlas_synthetic.yaml").read_text())
    plain["variants"] = {name: plain["variants"][name] for name in ("Uniform", "MD")}
    plain["scenarios"] = {}
    file.write_text(yaml.safe_dump(plain))
    lost = plain | {"changes": {"data.name": "folder", "data.path": str(tmp_path / "nothing")}}
    (tmp_path / "lost.yaml").write_text(yaml.safe_dump(lost))
    monkeypatch.setattr("evidence.HERE", tmp_path)
    folder = tmp_path / "comparisons"
    assert main(["tiny", "--quick", "--seeds", "1", "--folder", str(folder)]) == 0
    assert main(["lost", "tiny", "--quick", "--seeds", "2", "--folder", str(folder)]) == 2
    assert (folder / "tiny_quick/report.html").exists()
    assert len([*(folder / "tiny_quick/runs").glob("*/*/s*/summary.json")]) == 4
    with pytest.raises(UserError, match="there is no experiment smaller; there are lost, tiny"):
        main(["tiny", "smaller"])


def test_entropy_configs_are_there():
    assert all((PAPERS / file).is_file() for file in CONFIGS.values())


def measured(rng, noise=0.0):
    labels = rng.integers(1, 50, (30, 5))
    labels[:, 0] += 50
    logits = np.log(labels / labels.sum(axis=1, keepdims=True))
    return Measured(
        labels, {"bias": logits, "weight_mean": logits + noise * rng.standard_normal(logits.shape)}
    )


def test_correlations_of_exact_and_of_equal_estimates():
    exact = measured(np.random.default_rng(0))
    assert exact.correlations("bias", 1.0) == pytest.approx((1.0, 1.0))
    assert np.isnan(exact.correlations("bias", 1e-9)).all()


def test_entropy_table():
    runs = [measured(np.random.default_rng(seed), noise=0.5) for seed in (1, 2)]
    lines = entropy_table({("SGD", False): runs, ("SGD", True): runs, ("Adam", False): runs}).splitlines()
    assert len(lines) == 2 + 6
    assert lines[2].startswith("| SGD | ten rounds' models | bias | ")


@pytest.mark.parametrize("work", [True, False])
def test_the_rounds_of_a_run_are_timed_from_inside(work: bool, tmp_path: Path) -> None:
    config = RunConfig(rounds=3, clients=10, clients_per_round=2, quiet=True, threads=1)
    watch = timed_run(config, tmp_path, work=work)
    assert len(watch.trained) == 3
    assert len(watch.between()) == 2


def test_a_benchmark_replaces_its_own_table_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, end = tmp_path / "results.md", benchmarks.END
    first = "# All\n\nText.\n\n## By hand\n\nOne."
    results.write_text(f"{first}\n\n## Mine\n\nOld.\n\n{end}\n\nWhy.\n")
    monkeypatch.setattr(benchmarks, "RESULTS", results)
    for title in ("Mine", "More"):
        benchmarks._keep(title, "New.\n")
    mine, more = f"## Mine\n\nNew.\n\n{end}\n\nWhy.", f"## More\n\nNew.\n\n{end}"
    assert results.read_text() == f"{first}\n\n{mine}\n\n{more}\n"
