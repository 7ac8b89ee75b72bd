"""Random settings, YAML bytes, run folders, data files: a complete run, or one sentence and nothing touched.

``make fuzz`` runs the same with more examples and another seed: FLSEL_FUZZ is the number of examples.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import fuzz
import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from runs import left_behind, same, started

from flsel.config import RunConfig

EXAMPLES = int(os.environ.get("FLSEL_FUZZ", "0"))


def bounded(examples: int) -> Any:
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run, one that was killed between two checkpoints, and datasets."""
    folder = tmp_path_factory.mktemp("settled")
    (folder / "c.yaml").write_text(yaml.safe_dump({**fuzz.TINY, "rounds": 4}))
    assert fuzz.check(folder, "--config", "c.yaml") == 0
    (folder / "runs/run").rename(folder / "finished")
    with fuzz._chdir(folder):
        session = started(RunConfig.from_file(Path("c.yaml")))
        session.open()
        for save in (True, True, False):
            session.step()
            if save:
                session.save()
        session.close()
    (folder / "runs/run").rename(folder / "killed")
    return folder


@bounded(20)
@given(fuzz.edits())
def test_settings(content: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "c.yaml").write_bytes(
            yaml.safe_dump(content, allow_unicode=True).encode("utf-8", "replace")
        )
        fuzz.check(Path(name), "--config", "c.yaml")


@bounded(20)
@given(st.data())
def test_command_lines(data: st.DataObject) -> None:
    words = data.draw(fuzz.options(data.draw(st.sampled_from(sorted(fuzz.REFUSED)))))
    with tempfile.TemporaryDirectory() as name:
        code, error = fuzz.call(Path(name), *words)
        fuzz.refused(Path(name), {}, code, error)
        assert not fuzz.contents(Path(name))


@bounded(20)
@given(st.data())
def test_bytes_of_a_yaml_file(data: st.DataObject) -> None:
    whole = yaml.safe_dump(fuzz.TINY).encode()
    text = data.draw(
        fuzz.SNIPPETS.map(lambda s: whole + s) | fuzz.SNIPPETS.map(lambda s: s + whole) | fuzz.damaged(whole)
    )
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "c.yaml").write_bytes(text)
        fuzz.check(Path(name), "--config", "c.yaml", "--rounds", "2", "--output.dir", "runs")


@bounded(20)
@given(st.data())
def test_run_folders(settled: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["finished", "killed"]))
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "runs/run"
        shutil.copytree(settled / kind, run)
        for _ in range(data.draw(st.integers(1, 2))):
            files = sorted(p for p in run.rglob("*") if p.is_file() and "lock" not in p.name)
            if not files:
                break
            file = data.draw(st.sampled_from(files))
            how = data.draw(st.sampled_from(["delete", "damage", "swap"]))
            if how == "delete":
                file.unlink()
            elif how == "swap":
                file.write_bytes(data.draw(st.sampled_from(files)).read_bytes())
            else:
                file.write_bytes(data.draw(fuzz.damaged(file.read_bytes())))
        if fuzz.check(Path(name), "--resume", "runs/run") == 0:
            # What it went on from was whole, so it ends where the undisturbed run ended.
            whole = left_behind(settled / "finished")["state"]
            assert same(left_behind(run)["state"], whole)


@bounded(20)
@given(st.data())
def test_data_files(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = fuzz.write_data(folder)
        kind = data.draw(st.sampled_from(sorted(words)))
        files = sorted(p for p in [folder / kind, *(folder / kind).rglob("*")] if p.is_file())
        for file in data.draw(st.lists(st.sampled_from(files), max_size=2)):
            file.write_bytes(data.draw(fuzz.damaged(file.read_bytes())))
        (folder / "c.yaml").write_text(yaml.safe_dump(fuzz.TINY))
        fuzz.check(folder, "--config", "c.yaml", *words[kind], "--data.test", "0.2")
