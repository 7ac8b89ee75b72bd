"""Classes that an installed package offers are found by name; a broken one is a sentence that names it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flsel.commands.cli import main
from flsel.config import RunConfig
from flsel.config.schema import plugins
from flsel.errors import UserError
from flsel.selectors import Uniform

CODE = """
import torch
from flsel.objectives import FedAvg
from flsel.selector import Plan, Selector
from flsel.partition import IID


class Published(Selector):
    '''Takes the first clients.'''

    def __init__(self, much: int = 1):
        self.much = much

    def select(self, view):
        return Plan.star(view.pool[: view.clients_per_round])


class Halves(IID):
    pass


class Slow(torch.optim.SGD):
    pass


class Near(FedAvg):
    pass
"""
POINTS = """
[flsel.selectors]
Published = {module}:Published
Uniform = {module}:Published
NoSelector = {module}:Halves
Gone = nowhere_at_all:X
Fails = {module}_broken:X
Absent = {module}:Absent
Nothing = {module}
System = os:system

[flsel.partition]
Halves = {module}:Halves

[flsel.optimizers]
Slow = {module}:Slow

[flsel.objectives]
Near = {module}:Near
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package as pip leaves it: a module, and the entry points in its metadata."""
    made = list[str]()

    def install(package: str, points: str = POINTS) -> None:
        module = package.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(CODE)
        (tmp_path / f"{module}_broken.py").write_text("import torch\nraise RuntimeError('not today')\n")
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(points.format(module=module))
        made.append(module)

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    for module in made:
        sys.modules.pop(module, None)


def test_classes_of_an_installed_package_are_found_by_name(install: Install) -> None:
    install("fl-extras")
    config = RunConfig.from_dict(
        {},
        {
            "selector": "Published",
            "selector.much": 3,
            "partition": "Halves",
            "objective": "Near",
            "local.optimizer": "Slow",
            "local.optimizer.lr": 0.5,
        },
    )
    # The file of settings says where the class lies, and is read without the entry point.
    described = config.to_dict()
    assert described["selector"] == {"class_path": "fl_extras.Published", "init_args": {"much": 3}}
    assert described["partition"]["class_path"] == "fl_extras.Halves"
    assert described["objective"]["class_path"] == "fl_extras.Near"
    assert described["local"]["optimizer"]["class_path"] == "fl_extras.Slow"
    assert plugins()["selector"].named("Published") == "fl_extras.Published"


def test_a_shipped_name_stays_what_it_is(install: Install) -> None:
    install("fl-extras")
    assert type(RunConfig.from_dict({}, {"selector": "Uniform"}).selector) is Uniform
    assert "Uniform" not in plugins()["selector"].published()


def test_nothing_is_imported_until_it_is_named(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("fl-extras")
    RunConfig.from_dict({}, {"selector": "PowD"})
    with pytest.raises(UserError, match="did you mean Published"):
        RunConfig.from_dict({}, {"selector": "Publishd"})
    with pytest.raises(SystemExit):
        main(["train", "--selector.help"])
    assert "  Published                of the installed package fl-extras\n" in capsys.readouterr().out
    assert "fl_extras" not in sys.modules
    assert main(["check", "Published"]) == 0
    assert "Published keeps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NoSelector", "selector must be derived from Selector, and fl_extras.Halves is not."),
        ("Gone", "selector cannot be nowhere_at_all.X: there is no module nowhere_at_all"),
        ("Fails", "whose import failed: RuntimeError: not today (fl_extras_broken.py, line 2)."),
        ("Absent", "selector cannot be fl_extras.Absent: fl_extras has no Absent."),
        ("Nothing", "selector cannot be fl_extras., which is no import path"),
        ("System", "selector cannot be os.system: settings call nothing of Python's standard library"),
    ],
)
def test_a_broken_entry_point_is_one_sentence_that_names_its_package(
    install: Install, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    install("fl-extras")
    assert main(["train", "--selector", name]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"flsel: error: selector {name} of the installed package fl-extras: ")
    assert said in err
    # It costs nobody else anything.
    assert RunConfig.from_dict({}, {"selector": "Published"}).selector is not None


def test_a_name_of_two_packages_is_refused(install: Install) -> None:
    install("fl-extras")
    install("other-fl")
    with pytest.raises(UserError) as caught:
        RunConfig.from_dict({}, {"selector": "Published"})
    assert str(caught.value) == (
        "selector Published is offered by the installed packages fl-extras and other-fl: give an import "
        "path, such as fl_extras.Published."
    )
