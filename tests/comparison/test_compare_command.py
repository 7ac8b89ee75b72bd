"""``flsel compare`` as a person meets it: executed, stopped, resumed, grown, refused."""

# ruff: noqa: E501 (sentences are quoted whole)

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from runs import left_behind, same, settings
from torch import nn

import flsel
from flsel.availability import IDL, LN
from flsel.commands.cli import main
from flsel.comparison.comparison import Comparison
from flsel.comparison.grid import Cell
from flsel.config.groups import LocalConfig
from flsel.errors import UserError
from flsel.local.completeness import PDU
from flsel.objectives import FedProx
from flsel.selectors import PowD, Uniform

SMALL = [
    "--rounds", "4", "--clients", "8", "--clients_per_round", "3", "--accelerator", "cpu", "--threads", "1",
    "--data.synthetic.size_mean", "2.5", "--data.synthetic.size_std", "0.8", "--data.synthetic.dimension", "8",
    "--data.synthetic.classes", "4", "--data.synthetic.size_min", "10", "--local.steps", "3",
    "--output.checkpoint_every", "1", "--local.backend", "sequential",
]  # fmt: skip

pytestmark = pytest.mark.usefixtures("here")


def compare(*words: str) -> int:
    try:
        return main(["compare", *words])
    except SystemExit as stop:
        return int(stop.code or 0)


def refused(capfd: Any, *words: str) -> str:
    capfd.readouterr()
    assert compare(*words) == 2
    error = capfd.readouterr().err
    assert "Traceback" not in error
    assert len(error.splitlines()) == 1, error
    return str(error)


def rows(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "results.csv").read_text().splitlines()))


def summaries(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("summary.json")}


@pytest.mark.figures
def test_a_comparison_from_words_to_files_and_grown(capsys):
    assert (
        compare("--selectors", "Uniform,PowD:d=5", "--seeds", "2", "--last", "1", "--name", "c", *SMALL) == 0
    )
    said = capsys.readouterr().out
    assert "PowD:d=5, seed 1: test accuracy" in said
    assert "4/4 runs done" in said
    assert "points" in said
    folder = Path("comparisons/c")
    before = summaries(folder)
    assert len(before) == 4
    assert not list(folder.glob("runs/**/*.png")), "the report has pictures of all runs"
    powd = yaml.safe_load((folder / Cell("PowD:d=5", "all", 1).folder / "config.yaml").read_text())
    assert powd["selector"]["init_args"]["d"] == 5
    assert {row["status"] for row in rows(folder)} == {"complete"}
    assert compare("--resume", "comparisons/c", "--seeds", "3", "--selectors", "AFL") == 0
    after = summaries(folder)
    assert len(after) == 9
    assert {path: after[path] for path in before} == before, "finished runs are not repeated"
    assert {row["variant"] for row in rows(folder)} == {"Uniform", "PowD:d=5", "AFL"}
    assert "accuracy/last1" in rows(folder)[0], "what --resume is not told stays"
    assert flsel.compare(folder).analysis.options.baseline == "Uniform"
    again = flsel.compare(folder, baseline="AFL", target=0.9).analysis
    assert (again.options.baseline, again.options.asked, again.target.chosen_after) == ("AFL", 1, True)
    for name in ("report.md", "summary.csv", "differences.csv", "table.tex", "figures/curves.pdf"):
        assert (folder / name).is_file()


def commands(whole, text):
    plain = yaml.safe_load(whole)
    return yaml.safe_dump({**plain, "commands": yaml.safe_load(text)}, sort_keys=False).encode()


def test_a_damaged_comparison_is_named(capfd):
    assert compare("--selectors", "Uniform,AFL", "--seeds", "1", "--output.name", "c", *SMALL) == 0
    declared = Path("comparisons/c/comparison.yaml")
    whole, metrics = declared.read_bytes(), Path("comparisons/c/runs/all/AFL/s1/metrics.csv")
    for content, sentence in [
        (b"", "the file must be a mapping of settings"),
        (b"\0\xff", "the file must be YAML text"),
        (whole.replace(b"seeds:\n- 1", b"seeds:\n- x"), "seed must be a whole number >= 0, got 'x'."),
        (whole.replace(b"seeds:\n- 1", b"seeds: 1"), "is damaged: restore it, or start a new comparison: "),
        (
            whole.replace(b"seeds:\n- 1", b"seeds:\n- 1\n- 1"),
            "must hold a variant, a scenario, and seeds that differ",
        ),
        (whole.replace(b"\nscenarios:", b"\nsettings:"), "the key settings is called scenarios; rename it"),
        (whole.replace(b"last: 10", b"later: 10"), "is damaged: restore it, or start a new comparison: "),
        (commands(whole, "[3, null]"), "commands must be a list of texts, got [3, None]."),
        (commands(whole, "flsel compare"), "commands must be a list of texts, got 'flsel compare'."),
        (whole.replace(b"      selector: AFL", b"      selector: AFLL"), "did you mean AFL?"),
        (whole.replace(b"      selector: AFL", b"      rounds: 0"), "rounds must be a whole number in [1"),
        (
            whole.replace(b"      selector: AFL", b"      - 3"),
            "is damaged: restore it, or start a new comparison: ",
        ),
        (whole.replace(b"  AFL:\n", b"  3:\n"), "names of variants must be texts, got 3."),
        (whole.replace(b"last: 10", b"last: ten"), "judging.last must be a whole number >= 1, got 'ten'."),
    ]:
        declared.write_bytes(content)
        said = refused(capfd, "--resume", "comparisons/c")
        assert said.startswith("flsel: error: comparisons/c/comparison.yaml"), said
        assert sentence in said
        assert declared.read_bytes() == content
    declared.write_bytes(whole)
    for name in ("labels.csv", "diagnostics.jsonl"):
        file = metrics.with_name(name)
        before = file.read_bytes() if file.exists() else None
        file.write_text("damaged\n")
        said = refused(capfd, "--resume", "comparisons/c")
        assert said.startswith(f"flsel: error: AFL seed 1: {file} "), said
        assert declared.read_bytes() == whole
        file.unlink()
        if before is not None:
            file.write_bytes(before)
    for place in (metrics.parent, metrics.parents[1]):
        place.rename("aside")
        place.write_text("a file")
        said = refused(capfd, "--resume", "comparisons/c")
        assert f"{place} is a file where a folder of runs belongs" in said
        assert declared.read_bytes() == whole
        place.unlink()
        Path("aside").rename(place)
    metrics.write_text("")
    said = refused(capfd, "--resume", "comparisons/c")
    assert said.startswith(f"flsel: error: AFL seed 1: {metrics} has no rows, but the run has 4 rounds: ")
    assert said.endswith(f"or remove {metrics.parent} to execute the run again.\n")
    shutil.rmtree(metrics.parent)
    assert compare("--resume", "comparisons/c") == 0


def test_variants_of_other_rounds_are_no_pair(capsys):
    Path("v.yaml").write_text("short: {rounds: 2}\nlong: {rounds: 3}\n")
    assert compare("--variants", "v.yaml", "--seeds", "1", "--name", "c", *SMALL) == 0
    assert "are no pair: rounds differ" in Path("comparisons/c/report.md").read_text()


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ({"what": None}, "compare takes a RunConfig and variants to execute, or runs (results or their folders), got null."),
        ({"what": [1]}, "compare takes a RunConfig and variants to execute, or runs (results or their folders), got [1]."),
        ({"what": []}, "there are no runs to compare"),
        ({"what": "runs/*", "seeds": 5}, "seeds goes with runs to execute: give a RunConfig first"),
        ({"what": "runs", "resume": True}, "resume takes a comparison or its folder, got 'runs'."),
        ({}, "nothing to compare: "),
        ({"variants": 3}, "variants must be a list or a mapping by name, got 3."),
        ({"variants": [3]}, "variants must be selectors or texts such as 'PowD:d=12' in a list, got 3; give others by name"),
        ({"variants": {"a": 3}}, "variants: a must be a selector, a text such as 'PowD:d=12', a mapping of settings, a RunConfig"),
        ({"variants": {"a": {"rounds": 3, "sed": 1}}}, "variants: a: there is no setting sed"),
        ({"variants": {"a": flsel.RunConfig(rounds=3)}}, "variant a has other settings than the comparison"),
        ({"variants": {"a": flsel.RunConfig(completeness=PDU())}}, "variant a has other settings than the comparison"),
        ({"variants": [Uniform(), "Uniform"]}, "Uniform names two variants"),
        ({"variants": ["Uniform"], "seeds": 2.5}, "seeds must be text or null, got 2.5"),
        ({"variants": ["Uniform"], "seeds": [5], "baseline": "AFL"}, "baseline must be one of the variants Uniform, got AFL"),
        ({"variants": ["Uniform", "AFL"], "seeds": [2, 2]}, "seeds must be different numbers, and 2 stands there twice."),
        ({"variants": ["Uniform"], "grid": {"availability": "LN"}}, "grid availability must be a list of values, got 'LN'."),
        ({"variants": ["Uniform"], "grid": {"seed": [1]}}, "grid must vary the settings around, and seed is varied by"),
    ],
)  # fmt: skip
def test_compare_misused_from_python(what, sentence):
    with pytest.raises(UserError) as caught:
        flsel.compare(**{"what": flsel.RunConfig(quiet=True)} | what)
    assert str(caught.value).startswith(sentence), caught.value
    assert not Path("comparisons").exists()


def test_objects_are_compared(tmp_path):
    torch.manual_seed(0)
    local = LocalConfig(batch_size=5, steps=3, backend="sequential")
    config = settings(tmp_path, rounds=2, model=nn.Linear(8, 4), local=local)
    variants = {
        "plain": Uniform, "steps": {"local.steps": 5}, "prox": {"objective": FedProx(mu=0.1)},
        "wide": {"model": nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))},
        "whole": replace(config, selector=PowD(d=4)), "text": "PowD:d=5",
    }  # fmt: skip
    found = flsel.compare(config, variants, grid={"availability": [IDL(), LN()]}, name="c")
    assert {(run.variant, run.scenario) for run in found.analysis.runs if run.status == "complete"} == {
        (variant, f"availability={mode}") for variant in variants for mode in ("IDL", "LN")
    }
    declared = yaml.safe_load(Path("comparisons/c/comparison.yaml").read_text())["variants"]
    assert declared["whole"]["changes"]["selector"]["init_args"] == {"d": 4}
    more = flsel.compare(found, [PowD(d=6)], resume=True)
    assert "PowD:d=6" in more.analysis.variants
    # Without the objects what is there is judged, and what would need them is refused.
    again = flsel.compare("comparisons/c")
    assert len(again.analysis.runs) == 14
    with pytest.raises(UserError, match="was given as an object from Python"):
        flsel.compare("comparisons/c", resume=True, seeds=[7])


def test_a_cell_is_the_run_that_train_executes():
    assert compare("--selectors", "Uniform,AFL", "--seeds", "1,3", "--name", "c", *SMALL) == 0
    assert (
        main(["train", *SMALL, "--selector", "AFL", "--seed", "3", "--output.name", "r", "--quiet", "true"])
        == 0
    )
    assert same(left_behind(Path("comparisons/c/runs/all/AFL/s3")), left_behind(Path("runs/r")))


def test_killed_and_resumed_it_ends_with_the_same_runs():
    words = ["--selectors", "Uniform,AFL", "--seeds", "2", *SMALL, "--rounds", "30"]
    words += ["--local.backend", "compiled"]  # All four share a stack.
    assert compare(*words, "--name", "whole") == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "flsel", "compare", *words, "--name", "cut"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    middle = Path("comparisons/cut/runs/all/AFL/s1/rounds.jsonl")
    deadline = time.monotonic() + 500
    while not middle.is_file() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert middle.is_file()
    assert len(summaries(Path("comparisons/cut"))) < 4
    assert compare("--resume", "comparisons/cut") == 0
    for cell in ("Uniform/s1", "Uniform/s2", "AFL/s1", "AFL/s2"):
        one, other = (left_behind(Path(f"comparisons/{name}/runs/all") / cell) for name in ("whole", "cut"))
        assert same(one, other), cell


def test_a_kill_between_two_checkpoints_of_a_stack_leaves_no_trace(monkeypatch):
    """After it the runs train in the very stacks of an undisturbed comparison, down to the positions."""
    from flsel.local.compiled.engine import Engine
    from flsel.runner.session import Session

    stacks: list[list[tuple[int, int]]] = []
    saves = [0]
    train, save = Engine.train, Session.save

    def noted(self: Any, rows: Any, visits: Any, ends: Any) -> None:
        stacks.append([(visit.client, visit.round) for visit in visits])
        train(self, rows, visits, ends)

    def killed(self: Any) -> None:
        saves[0] -= 1
        if saves[0] == 0:
            raise KeyboardInterrupt  # as kill -9: nothing is saved any more
        save(self)

    monkeypatch.setattr(Engine, "train", noted)
    # FedCat plans three rounds at once, so that its runs end before those of the others.
    words = ["--selectors", "Uniform,AFL,FedCat", "--seeds", "1", *SMALL, "--rounds", "7", "--quiet"]
    words += ["--output.checkpoint_every", "2", "--local.backend", "compiled", "--local.steps", "null"]
    assert compare(*words, "--name", "whole") == 0
    whole = [*stacks]
    monkeypatch.setattr(Session, "save", killed)
    again = [*words, "--name", "cut"]
    for kill in (2, 8, 6):  # of three: while the first are saved, later ones, and those at the end of FedCat
        stacks.clear()
        saves[0] = kill
        assert compare(*again) == 130
        assert all(stack in whole for stack in stacks)
        again = ["--resume", "comparisons/cut"]
    stacks.clear()
    assert compare(*again) == 0
    assert stacks == whole[len(whole) - len(stacks) :]
    for cell in ("Uniform/s1", "AFL/s1", "FedCat/s1"):
        one, other = (left_behind(Path(f"comparisons/{name}/runs/all") / cell) for name in ("whole", "cut"))
        assert same(one, other), cell
    assert not Path("comparisons/cut/.together").exists()


def test_cells_that_share_stacks_are_the_runs_that_train_executes(monkeypatch):
    from flsel.local.compiled.engine import Engine

    train, widths = Engine.train, []
    monkeypatch.setattr(Engine, "train", lambda *a: widths.append(len(a[2])) or train(*a))
    words = [*SMALL, "--local.backend", "compiled", "--rounds", "5", "--precision", "64-true"]
    Path("frail_too.py").write_text(
        "from flsel.selector import Plan, Selector\n"
        "class Frail(Selector):\n"
        "    def select(self, view):\n"
        "        return Plan.star(view.pool[: 3 // (3 - view.round)])\n"
    )
    assert compare("--selectors", "Uniform,AFL,frail_too.Frail", "--seeds", "2", "--name", "c", *words) == 2
    assert max(widths) > 9, "cells of both seeds are in one stack"
    failed = {row["variant"] for row in rows(Path("comparisons/c")) if row["status"] == "failed"}
    assert failed == {"frail_too.Frail"}
    for seed in ("1", "2"):
        assert (
            main(
                [
                    "train",
                    *words,
                    "--selector",
                    "AFL",
                    "--seed",
                    seed,
                    "--output.name",
                    seed,
                    "--quiet",
                    "true",
                ]
            )
            == 0
        )
        alone, cell = (
            left_behind(Path(at)) for at in (f"runs/{seed}", f"comparisons/c/runs/all/AFL/s{seed}")
        )
        for name, value in alone["state"]["model"].items():
            torch.testing.assert_close(cell["state"]["model"][name], value, atol=1e-10, rtol=0)
        assert [line["plan"] for line in cell["plans"]] == [line["plan"] for line in alone["plans"]]


@pytest.mark.parametrize("last", [False, True])
def test_ctrl_c_says_how_to_go_on(last, capfd, monkeypatch):
    """In a round that is the last of its run, too: the next one is not begun."""
    from flsel.engine.server import Server

    begin, opened = Server.open, []

    def interrupted(self: Server) -> Any:
        opened.append(1)
        if self.round == self.federation.rounds - 1 if last else len(opened) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return begin(self)

    monkeypatch.setattr(Server, "open", interrupted)
    assert compare("--selectors", "Uniform,AFL", "--seeds", "1", "--name", "c", *SMALL) == 130
    assert not last or len(list(Path("comparisons/c/runs").rglob("metrics.csv"))) == 1
    assert "continue with: flsel compare --resume comparisons/c" in capfd.readouterr().err
    monkeypatch.setattr(Server, "open", begin)
    assert compare("--resume", "comparisons/c") == 0
    assert {row["status"] for row in rows(Path("comparisons/c"))} == {"complete"}


def test_a_selector_that_fails_costs_its_runs_only(capsys):
    Path("frail_selector.py").write_text(
        "from flsel.selector import Plan, Selector\n"
        "class Frail(Selector):\n"
        "    def select(self, view):\n"
        "        if view.round == 2:\n"
        "            raise KeyError('gone')\n"
        "        return Plan.star(view.pool[: view.clients_per_round])\n"
    )
    assert (
        compare("--selectors", "Uniform,AFL,frail_selector.Frail", "--seeds", "2", "--name", "c", *SMALL) == 2
    )
    printed = capsys.readouterr()
    assert printed.err.startswith(
        "flsel: error: no run of frail_selector.Frail could be counted (round 2 failed"
    )
    said = " ".join(printed.out.split())
    assert "2 of 6 runs failed. They are listed and not counted." in said
    assert "gone" in said
    assert "frail_selector.py, line 5" in said
    failed = [row for row in rows(Path("comparisons/c")) if row["status"] == "failed"]
    assert len(failed) == 2
    assert not failed[0]["accuracy/final"]


def test_a_grid_of_scenarios():
    words = ["--selectors", "Uniform,AFL", "--grid", "availability=IDL,MDF", "--seeds", "1", "--name", "g"]
    assert compare(*words, *SMALL) == 0
    found = rows(Path("comparisons/g"))
    assert {row["scenario"] for row in found} == {"availability=IDL", "availability=MDF"}
    assert len(found) == 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--selectors", "Uniform,PowDD", "--seeds", "1"], "PowDD seed 1: selector has no class PowDD; did you mean PowD?"),
        (["--selectors", "Uniform,PowD:e=3"], "selector.e is not an argument of PowD"),
        (["--selectors", "Uniform,PowD:3"], "an argument is given once, as NAME:KEY=VALUE"),
        (["--selectors", "Uniform,PowD:d=6:d=7"], "an argument is given once, as NAME:KEY=VALUE"),
        (["--resume", "", "--selectors", "Uniform"], "--resume must not be an empty text"),
        (["--selectors", "Uniform,Uniform"], "selectors must differ from one another"),
        (["--selectors", ","], "selectors must name at least one"),
        (["--selectors", "Uniform", "--variants", "none.yaml"], "none.yaml: there is no such file"),
        (["--selectors", "Uniform", "--seeds", "5..1"], "seeds must be a number such as 5"),
        (["--selectors", "Uniform", "--seeds", "1..900000000"], "seeds must be 1 to 10,000 of them, got 900,000,000."),
        (["--selectors", "Uniform", "--seeds", "1" * 5000], "seeds must be a number such as 5"),
        (["--selectors", "Uniform", "--seeds", "1,1"], "1 stands there twice."),
        (["--selectors", "Uniform", "--seeds", "0"], "seeds must be 1 to 10,000 of them, got 0."),
        (["--selectors", "Uniform", "--grid", "availability"], "grid must be KEY=VALUE,VALUE"),
        (["--selectors", "Uniform", "--grid", "availability=LL"], "Uniform (availability=LL) seed 0: availability must be one of"),
        (["--selectors", "Uniform", "--grid", "selector=AFL"], "selector is varied by --selectors"),
        (["--selectors", "Uniform", "--grid", "seed=1,2"], "seed is varied by --seeds"),
        (["--selectors", "Uniform", "--grid", "availability=IDL,IDL"], "grid must have different values"),
        (["--selectors", "Uniform", "--grid", "clients_per_round=2", "--grid", "clients_per_round=3"], "grid must vary clients_per_round once"),
        (["--selectors", "Uniform", "--grid", "evaluation.target=0.1,0.2"], "which the comparison sets (--target)"),
        (["--selectors", "Uniform,PowD:d=1"], "PowD:d=1 seed 0: selector.d must be at least clients_per_round ("),
        (["--selectors", "Uniform", "--grid", "track.mode=auto"], "track.mode says where it is shown"),
        (["--selectors", "Uniform", "--baseline", "AFL"], "baseline must be one of the variants Uniform, got AFL"),
        (["--selectors", "Uniform", "--target", "70"], "target must be in (0, 1] for an accuracy, got 70"),
        (["--selectors", "Uniform", "--cost", "simulated_seconds"], "Uniform seed 0: cost simulated_seconds needs simulated devices"),
        (["--selectors", "Uniform", "--last", "0"], "last must be a whole number >= 1 or null, got 0."),
        (["--selectors", "Uniform", "--max-concurrent", "x"], "max_concurrent must be a whole number"),
        (["--selectors", "Uniform", "--selector", "AFL", "--clients_per_round", "90"], "clients_per_round"),
        (["--selecters", "Uniform"], "there is no setting selecters; did you mean selectors?"),
        (["--selectors", "Uniform", "--alpha", "0.01"], "there is no setting alpha; did you mean level (1 - alpha)?"),
        (["--selectors", "Uniform", "--seedz", "3"], "there is no setting seedz; did you mean seeds?"),
        (["--selectors", "Uniform", "--selecto", "3"], "there is no setting selecto; did you mean selector?"),
        (["--selectors", "Uniform,PowD", "--seeds", "2", "--seed", "3"], "seed must not be given: flsel compare sets the seeds of its runs by --seeds."),
        (["--selectors"], "selectors needs a value"),
        (["--name", "x"], "nothing to compare: give --selectors"),
        (["nowhere"], "there is no folder nowhere to compare"),
        (["nowhere", "--seeds", "2"], "seeds starts runs, and existing ones are named"),
        (["nowhere", "--rounds", "2"], "rounds is a setting of runs, and these have theirs already"),
        (["--resume", "nowhere"], "there is no folder nowhere; a "),
        (["--gpus", "1.5"], "gpus must be a whole number or below 1, got 1.5."),
        (["--resume"], "--resume takes the folder of a comparison"),
        (["--resume", "~nobody-of-that-name/c"], "there is no home folder for ~nobody-of-that-name/c; write the folder out."),
        (["~nobody-of-that-name/c"], "there is no home folder for ~nobody-of-that-name/c; write the folder out."),
        (["--variants", "~nobody-of-that-name/c"], "there is no home folder for ~nobody-of-that-name/c; write the folder out."),
        (["--resume", "."], "is not the folder of a comparison: it holds no comparison.yaml"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(capfd, words, sentence):
    assert sentence in refused(capfd, *words)
    assert not Path("comparisons").exists()


def test_resuming_with_what_does_not_fit_changes_nothing(capfd):
    assert compare("--selectors", "Uniform,AFL", "--seeds", "1", "--name", "c", *SMALL) == 0
    declared = Path("comparisons/c/comparison.yaml").read_text()
    assert "no class PowDD" in refused(capfd, "--resume", "comparisons/c", "--selectors", "PowDD")
    assert "rounds is a setting" in refused(capfd, "--resume", "comparisons/c", "--rounds", "9")
    assert "name stays as it is" in refused(capfd, "--resume", "comparisons/c", "--name", "d")
    assert Path("comparisons/c/comparison.yaml").read_text() == declared
    assert "is a comparison, not a run" in refused(capfd, "comparisons/c", "comparisons/c/runs/all/AFL/s1")


def test_a_comparison_is_judged_again_by_its_folder_as_from_python(capfd):
    assert compare("--selectors", "Uniform,AFL", "--seeds", "2", "--name", "c", *SMALL) == 0
    report = Path("comparisons/c/report.md").read_text()
    assert compare("comparisons/c", "--baseline", "AFL", "--name", "again") == 0
    found = flsel.compare("comparisons/c", baseline="AFL")
    assert found.headline in Path("comparisons/again/report.md").read_text()
    assert any("the baseline changed from Uniform to AFL after 2 seeds" in note for note in found.notes)
    assert Path("comparisons/c/report.md").read_text() == report
    kept = yaml.safe_load(Path("comparisons/c/comparison.yaml").read_text())["judging"]
    assert kept["judged_again"] == ["flsel compare comparisons/c --baseline AFL --name again (after 2 seeds)"]
    assert (kept["baseline"], kept["changes"]) == (None, [])


def test_a_tuned_config_is_a_variant_and_says_where_it_comes_from():
    sweep = Path("sweeps/s")
    sweep.mkdir(parents=True)
    base = Path("base.yaml")
    from flsel.commands.argv import parse, words

    described = parse(words(SMALL)).to_dict()
    base.write_text(yaml.safe_dump(described))
    tuned = {**described, "selector": {"class_path": "PowD", "init_args": {"d": 7}}, "seed": 9}
    (sweep / "best.yaml").write_text(yaml.safe_dump(tuned))
    (sweep / "config.yaml").write_text(yaml.safe_dump(described))
    (sweep / "sweep.yaml").write_text("trials: 8\nseeds: [1]\n")
    Path("v.yaml").write_text("tuned: sweeps/s/best.yaml\nfaster: {selector: Uniform, local: {steps: 5}}\n")
    assert compare("--config", "base.yaml", "--selectors", "Uniform", "--variants", "v.yaml", "--seeds", "1",
                   "--name", "c") == 0  # fmt: skip
    stored = yaml.safe_load(Path("comparisons/c/comparison.yaml").read_text())
    assert stored["variants"]["tuned"]["tuned"]["seeds"] == [1]
    described = yaml.safe_load(Path("comparisons/c/runs/all/tuned/s1/config.yaml").read_text())
    assert described["selector"]["init_args"]["d"] == 7
    faster = yaml.safe_load(Path("comparisons/c/runs/all/faster/s1/config.yaml").read_text())
    assert faster["local"]["steps"] == 5
    assert "tuned was tuned on seeds 1" in Path("comparisons/c/report.md").read_text()


def test_a_tuned_config_of_another_problem_is_refused(capfd):
    from flsel.commands.argv import parse, words

    described = parse(words(SMALL)).to_dict()
    Path("other.yaml").write_text(yaml.safe_dump({**described, "rounds": 9}))
    said = refused(capfd, *SMALL, "--selectors", "Uniform", "--variants", "other.yaml", "--seeds", "1")
    assert "variant other (other.yaml) has other settings than the comparison" in said
    assert "rounds 9 instead of 4" in said


def test_a_comparison_that_is_running_is_left_alone(capfd):
    from flsel.runner.lock import Lock

    assert compare("--selectors", "Uniform,AFL", "--seeds", "1", "--name", "c", *SMALL) == 0
    declared = Path("comparisons/c/comparison.yaml").read_text()
    with Lock(Path("comparisons/c"), "comparison"):
        said = refused(capfd, "--resume", "comparisons/c", "--seeds", "2")
    assert "comparison comparisons/c is being written by process" in said
    assert Path("comparisons/c/comparison.yaml").read_text() == declared


def test_a_folder_that_cannot_be_written_is_said(capfd):
    Path("comparisons").write_text("a file")
    said = refused(capfd, "--selectors", "Uniform,AFL", "--seeds", "1", *SMALL)
    assert "cannot create the run folder comparisons/synthetic-uniform-afl: not a directory" in said


def test_a_run_of_other_settings_is_not_counted_as_the_declared_one(capsys):
    assert compare("--selectors", "Uniform,AFL", "--seeds", "1", "--name", "c", *SMALL) == 0
    file = Path("comparisons/c/comparison.yaml")
    text = file.read_text()
    file.write_text(text.replace("batch_size: 10", "batch_size: 11", 1))
    assert file.read_text() != text
    capsys.readouterr()
    assert compare("--resume", "comparisons/c") == 2
    assert (
        "was run with other settings than comparisons/c/comparison.yaml declares" in capsys.readouterr().err
    )


@pytest.mark.parametrize("changes", ["seed: 3", "output: {dir: x}", "evaluation.stop_at_target: true"])
def test_a_variant_sets_nothing_that_the_comparison_sets(capsys, changes):
    Path("v.yaml").write_text(f"one: {{selector: Uniform}}\nother: {{selector: Uniform, {changes}}}\n")
    assert compare("--variants", "v.yaml", "--seeds", "1", "--name", "c", *SMALL) == 2
    assert "v.yaml: other must not set " in capsys.readouterr().err
    assert not Path("comparisons/c").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "null: {selector: AFL}",
            "a variant's name must be a text of 1 to 200 printable characters, got None",
        ),
        ("yes: {selector: AFL}", "got True; put it in quotes."),
        ('"a\\nb": {selector: AFL}', "got 'a\\nb'; put it in quotes."),
        ('" ": {selector: AFL}', "got ' '; put it in quotes."),
        ("a: {local: {steps: 3}, local.steps: 4}", "v.yaml: a: local.steps is set twice"),
        ("a: {selector: PowD, selector.d: 5, selector.init_args.d: 6}", "v.yaml: a: selector.d is set twice"),
        ("a: {local.steps: 3}", "a sets local.steps, which --grid varies; set it in one of them."),
    ],
)
def test_odd_variants_are_one_sentence(capfd, text, sentence):
    Path("v.yaml").write_text(f"{text}\n")
    assert sentence in refused(capfd, "--variants", "v.yaml", "--grid", "local.steps=1,2", *SMALL)
    assert not Path("comparisons").exists()


def test_names_of_variants_and_runs_stay_names(monkeypatch):
    """No path becomes part of a folder's name, and no pattern is seen in one; a list of one seed is that seed."""
    found = []
    monkeypatch.setattr("flsel.comparison.compare._execute", lambda folder, grid, *_: found.append(grid))
    monkeypatch.setattr("flsel.comparison.compare.read_comparison", lambda folder: Comparison(None, folder))
    flsel.compare(flsel.RunConfig(), ["Uniform"], seeds=[5])
    assert found[0].seeds == (5,)
    Path("v.yaml").write_text("../../x: {selector.weights: size}\n")
    made = flsel.compare(flsel.RunConfig(quiet=True), "v.yaml")
    assert made.folder == Path("comparisons/synthetic-.._.._x")
    Path("run[1]").mkdir()
    with pytest.raises(UserError, match=r"run\[1\] is not the folder of a run: it holds no config.yaml\.$"):
        flsel.compare("run[1]")
    Path("run[1]/all/Uniform").mkdir(parents=True)
    Path("run[1]/all/Uniform/config.yaml").touch()
    with pytest.raises(UserError, match=r"\(the runs below it are run\[1\]/\*/\*\)"):
        flsel.compare("run[1]")


STOPPING = (
    "[{class_path: EarlyStopping, init_args: {monitor: test/loss, mode: max, min_delta: 100, patience: 2}}]"
)


def test_a_callback_that_ends_a_run_ends_it_in_a_comparison_too():
    words = [*SMALL, "--rounds", "9", "--callbacks", STOPPING]
    assert main(["train", *words, "--selector", "Uniform", "--seed", "1", "--name", "alone"]) == 0
    assert compare("--selectors", "Uniform,PowD", "--seeds", "2", "--name", "many", *words) == 0
    for row in rows(Path("comparisons/many")):
        assert row["status"] == "complete"
    alone, other = Path("runs/alone"), Path("comparisons/many/runs/all/Uniform/s1")
    assert json.loads((alone / "summary.json").read_text())["rounds"] < 9
    assert same(left_behind(alone), left_behind(other))
