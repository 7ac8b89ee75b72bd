"""What a release uploads passes the index's checks, and works where nothing else is installed.

`make test-package` installs what these tests need, and lets them use the network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from test_wheel import ROOT, SITE, SOURCES

pytest.importorskip("build", reason="build is not installed: make test-package")
pytest.importorskip("twine", reason="twine is not installed: make test-package")


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | {"FLSEL_REPOSITORY": SITE, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("release")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    run(sys.executable, "-m", "build", "--no-isolation", cwd=folder)
    return folder / "dist"


def test_twine_finds_nothing_wrong(dist):
    files = sorted(dist.iterdir())
    assert [file.suffix for file in files] == [".whl", ".gz"]
    assert run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=dist).count("PASSED") == 2


@pytest.mark.skipif("FLSEL_NETWORK" not in os.environ, reason="installs from an index: make test-package")
@pytest.mark.timeout(3600)
def test_the_wheel_works_in_a_bare_environment(dist, tmp_path):
    venv.create(tmp_path / "bare", with_pip=True)
    commands = tmp_path / "bare/bin"
    (wheel,) = dist.glob("*.whl")
    run(commands / "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    flsel = commands / "flsel"
    run(flsel, "train", "--rounds", "2", "--quiet", cwd=tmp_path)
    run(flsel, "data", "--config", "quickstart", cwd=tmp_path)
    assert "_shtab_flsel" in run(flsel, "completion", "bash", cwd=tmp_path)
    few = ["--config", "quickstart", "--rounds", "2", "--quiet"]
    run(flsel, "tune", *few, "--selector", "HiCS", "--data.validation", "0.1", "--trials", "1", cwd=tmp_path)
    run(flsel, "compare", *few, "--selectors", "Uniform,MD", "--seeds", "2", "--name", "made", cwd=tmp_path)
    assert (tmp_path / "comparisons/made/report.html").is_file()
    for extra, option in (("wandb", "--track.tracker"), ("mlflow", "--track.tracker")):
        said = run(flsel, "train", option, extra, cwd=tmp_path, code=2)
        assert f'pip install "flsel[{extra}]"' in said
    said = run(flsel, "tune", *few, "--space", "local", "--sampler", "cmaes", cwd=tmp_path, code=2)
    assert 'pip install "flsel[cmaes]"' in said
