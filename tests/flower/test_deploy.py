"""``flsel deploy`` writes an app that says what it runs, and refuses what cannot be deployed."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from flsel.commands.cli import main
from flsel.config import RunConfig

if sys.version_info >= (3, 11):
    import tomllib


def app(tmp_path: Path, *more: str) -> int:
    return main(["deploy", "--app", str(tmp_path / "app"), "--rounds", "7", "--selector", "PowD", *more])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Flower needs Python 3.11")
def test_the_app_has_the_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(tmp_path, "--nodes", "4", "--timeout", "20") == 0
    assert f"flwr run {tmp_path / 'app'} CONNECTION" in capsys.readouterr().out
    project = tomllib.loads((tmp_path / "app/pyproject.toml").read_text())
    own = project["tool"]["flwr"]["app"]
    assert own["config"] == {"nodes": 4, "wait": 300.0, "timeout": 20.0, "resume": ""}
    config = RunConfig.from_file(tmp_path / "app/flsel_app/config.yaml")
    assert (config.rounds, type(config.selector).__name__) == (7, "PowD")
    assert Path(config.output.dir).is_absolute()
    for component in own["components"].values():
        module, _, name = component.partition(":")
        tree = ast.parse((tmp_path / "app" / f"{module.replace('.', '/')}.py").read_text())
        assert name in {
            target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets
        }  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ([], "nodes must be a whole number in [1, 1e7], got nothing."),
        (["--nodes", "0"], "nodes must be a whole number in [1, 1e7], got 0."),
        (["--nodes", "2", "--timeout", "soon"], "timeout must be a number of seconds in [1, 1e7], got soon."),
        (
            ["--nodes", "2", "--objective", "SCAFFOLD"],
            "objective must be FedAvg or FedProx in a deployment, got",
        ),
        (["--nodes", "2", "--own-data"], "data.name must be a dataset that each node has of its own"),
        (["--nodes", "2", "--selector.d", "3"], "selector.d must be at least clients_per_round (6), got 3."),
        (["--nodes", "2", "--selector", "Oort"], "devices must be set with Oort, which needs the clients'"),
        (["--nodes", "2", "--selector", "FedPNS", "--data.server", "0"], "FedPNS needs the server's holdout"),
        (
            ["--nodes", "2", "--local.optimizer.lr", "-1"],
            "local.optimizer SGD cannot be built: Invalid learning",
        ),
        (["--nodes", "2", "--output_layer", "nope"], "output_layer must name a layer"),
        (["--nodes", "31"], "nodes must be at most the number of clients (30), got 31."),
        (["--nodes", "2", "--clients", "0"], "clients must be a whole number >= 1"),
    ],
)
def test_what_cannot_be_deployed_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], reason: str
) -> None:
    assert app(tmp_path, *more) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "app").exists()


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app/mine").touch()
    assert app(tmp_path, "--nodes", "2") == 2
    assert "app must be a folder that does not exist or is empty" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "app").iterdir()] == ["mine"]


def test_folder_is_the_folder_of_the_app(here: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "--nodes", "2", "--folder", "mine"]) == 0
    assert (Path("mine") / "pyproject.toml").is_file()


@pytest.mark.parametrize("own", [True, False])
def test_nodes_of_the_app_have_their_own_data_if_asked(tmp_path: Path, own: bool) -> None:
    assert (
        app(
            tmp_path,
            "--nodes",
            "4",
            "--clients_per_round",
            "3",
            *(["--own-data", "--data.name", "fashion_mnist"] if own else []),
        )
        == 0
    )
    config = RunConfig.from_file(tmp_path / "app/flsel_app/config.yaml")
    assert (config.clients == 4) is own
    for name in ("server", "client"):
        assert f"own_data={own}" in (tmp_path / f"app/flsel_app/{name}.py").read_text()


def test_own_data_is_true_or_false(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(tmp_path, "--nodes", "4", "--own-data", "maybe") == 2
    assert "own-data must be true or false, got maybe." in capsys.readouterr().err
