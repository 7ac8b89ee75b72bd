"""What is said about the package in several places agrees."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import yaml
from packaging.specifiers import SpecifierSet
from test_wheel import SOURCES

import flsel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PINS = [
    line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")
]
# Where a module is not called like the package that brings it.
PACKAGE_OF = {"PIL": "pillow", "vl_convert": "vl-convert-python", "yaml": "pyyaml"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[\[><=!~ ;]", requirement)[0]) for requirement in requirements}


def test_version_is_the_same_everywhere():
    versions = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert flsel.__version__ == PROJECT["project"]["version"] == versions[0]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == flsel.__version__


def test_dependencies_have_lower_bounds_only():
    extras = PROJECT["project"]["optional-dependencies"]
    for requirement in [
        *PROJECT["project"]["dependencies"],
        *(r for group in extras.values() for r in group),
    ]:
        # Flower changes its protocol with every minor version: those that were tried.
        bound = (
            r"flwr>=[\d.]+,<[\d.]+; .*"
            if requirement.startswith("flwr>")
            else r"[\w-]+(\[[\w,]+\])?>=[\d.]+(,!=[\d.]+)*"
        )
        assert re.fullmatch(bound, requirement), requirement


def test_what_is_imported_is_declared():
    imported = {
        name.partition(".")[0]
        for path in [*(ROOT / "flsel").rglob("*.py"), *(ROOT / "tune").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    needed = {normal(PACKAGE_OF.get(name, name)) for name in imported - sys.stdlib_module_names}
    declared = names_of(PROJECT["project"]["dependencies"])
    extras = PROJECT["project"]["optional-dependencies"]
    optional = names_of([r for extra, group in extras.items() if extra != "dev" for r in group])
    assert needed <= declared | optional | {"flsel", "flsel-tune"}


def test_constraints_pin_every_dependency_exactly():
    for pin in PINS:
        assert re.match(r"[\w.-]+==[\w.]+( ; .+)?$", pin), pin
    declared = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["dev"]]
    assert names_of(declared) <= names_of(PINS)


def test_the_hashed_file_has_the_same_versions_and_a_hash_for_each():
    hashed = (ROOT / "constraints-hashed.txt").read_text()
    blocks = [block.split(" \\\n") for block in re.split(r"\n(?=[\w])", hashed) if not block.startswith("#")]
    assert [pin for pin, *_ in blocks] == PINS
    for pin, *hashes in blocks:
        assert hashes, pin
        assert all(re.match(r"    --hash=sha256:[0-9a-f]{64}$", line.rstrip()) for line in hashes), pin


def test_the_two_malicious_releases_of_lightning_are_excluded():
    # GHSA-w37p-236h-pfx3
    lightning = SpecifierSet(
        "".join(next(d for d in PROJECT["project"]["dependencies"] if d.startswith("lightning"))[9:])
    )
    assert [v for v in ("2.5.2", "2.6.1", "2.6.2", "2.6.3", "2.6.4") if v not in lightning] == [
        "2.6.2",
        "2.6.3",
    ]


def test_torch_and_torchvision_are_pinned_as_a_pair():
    held = PROJECT["tool"]["uv"]["constraint-dependencies"]
    pair = sorted(pin for pin in PINS if pin.startswith(("torch=", "torchvision=")))
    assert sorted(pin for pin in held if pin.startswith("torch")) == pair


def test_the_container_runs_the_demo():
    """The same words, and files that the container's build may read."""
    made = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    demo = re.search(r"^demo:.*\n\t@\$\(BIN\)/flsel (.*)$", made, re.MULTILINE)
    docker = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    told = re.search(r"^CMD (\[.*\])$", docker, re.MULTILINE)
    assert demo
    assert told
    assert json.loads(told[1]) == demo[1].split()
    copied = {
        word.rstrip("/")
        for line in re.findall(r"^COPY (.*) \S+$", docker, re.MULTILINE)
        for word in line.split()
    }
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == allowed == {*SOURCES, "constraints.txt"}
