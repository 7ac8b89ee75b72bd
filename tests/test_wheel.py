"""What is installed from a wheel works in a folder whose files have the names that could get in its way."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from test_typing import checked

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("flsel", "tune", "configs", "atlas", "pyproject.toml", "setup.py", "README.md", "LICENSE")
SITE = "https://example.org/flsel/flsel"
HOSTILE = 'raise ImportError("a file of the current folder was imported")\n'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources: a build leaves files beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder)
    options = ["--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    build = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", "dist", "."]
    environment = os.environ | {"FLSEL_REPOSITORY": SITE}
    done = subprocess.run(build, cwd=folder, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    (made,) = (folder / "dist").glob("flsel-*.whl")
    return made


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of an environment that has the wheel, and from this one what flsel depends on."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True, with_pip=False)
    python = home / "bin/python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--quiet"]
    subprocess.run([*install, "--disable-pip-version-check", str(wheel)], check=True, timeout=500)
    (site,) = home.glob("lib/python*/site-packages")
    # A path file's folder is searched after the environment's own, and its path files are not read.
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with modules and configs that flsel must not take for its own."""
    folder = tmp_path_factory.mktemp("hostile")
    for name in ("tune.py", "utils.py", "config.py", "commands.py"):
        (folder / name).write_text(HOSTILE)
    for name in ("runs/quickstart.yaml", "search/local.yaml"):
        (folder / "configs" / name).parent.mkdir(parents=True)
        (folder / "configs" / name).write_text("nonsense: true\n")
    return folder


def test_the_wheel_holds_both_packages_and_all_configs(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        str(path.relative_to(base))
        for base, top in ((ROOT, "flsel"), (ROOT / "tune", "flsel_tune"))
        for path in (base / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    expected |= {f"flsel/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.yaml")}
    atlases = [path for path in (ROOT / "atlas").rglob("*") if path.suffix in (".csv", ".json")]
    expected |= {f"flsel/{path.relative_to(ROOT)}" for path in atlases}
    held = {name for name in names if ".dist-info/" not in name}
    assert held == expected
    assert {"flsel/py.typed", "flsel_tune/py.typed"} <= held


def test_an_index_page_shows_links_that_lead_to_the_release(wheel):
    with zipfile.ZipFile(wheel) as files:
        (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
        told = message_from_string(files.read(name).decode())
    assert told["Author"] == "The flsel developers"
    assert f"Source, {SITE}" in told.get_all("Project-URL")
    page = told.get_payload()
    targets = re.findall(r"\]\(([^()\s]+)\)", page) + re.findall(r'<img src="([^"]+)"', page)
    assert len(targets) > 20
    assert all(target.startswith((f"{SITE}/blob/v", f"{SITE}/raw/v", "https://", "#")) for target in targets)
    shown = [target.partition(f"/v{told['Version']}/") for target in targets if target.startswith(SITE)]
    assert shown
    assert all((ROOT / path.partition("#")[0]).exists() for _, _, path in shown)


def test_installed_commands_work_beside_hostile_files(commands, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["OMP_NUM_THREADS"] = "1"

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(commands / "flsel"), *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=500,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "papers/fedgs/synthetic" in run("configs")
    run("train", "--config", "quickstart", "--rounds", "2", "--output.name", "trained", "--quiet")
    assert (folder / "runs/trained/summary.json").is_file()
    few = ["--config", "quickstart", "--data.validation", "0.1", "--rounds", "2", "--quiet"]
    run("tune", *few, "--space", "local", "--trials", "1", "--name", "tuned")
    assert (folder / "sweeps/tuned/best.yaml").is_file()
    run("compare", *few, "--selectors", "Uniform,MD", "--seeds", "2", "--name", "compared")
    assert (folder / "comparisons/compared").is_dir()
    with_module = [str(commands / "python"), "-m", "flsel", "train", *few, "--output.name", "again"]
    subprocess.run(with_module, cwd=folder, env=environment, check=True, timeout=500)


def test_a_users_script_passes_mypy_against_the_wheel(commands, tmp_path):
    said = checked(tmp_path, "--python-executable", str(commands / "python"))
    assert said == "Success: no issues found in 1 source file\n"
