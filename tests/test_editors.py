"""Editors and shells know the settings: a schema of their files, and completion."""

from __future__ import annotations

import json
import subprocess

import jsonschema
import pytest

from flsel.commands.cli import COMMANDS, main
from flsel.commands.completion import _OPTIONS, _parser
from flsel.config.json_schema import json_schema
from flsel.config.run_config import RunConfig
from flsel.files.shipped import PAPERS, RUNS, find, shipped
from flsel.files.yaml import read_yaml


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_all_shipped_configs_fit_the_schema(validator):
    files = [(kind, file.name) for kind in (RUNS, PAPERS) for file in shipped(kind)]
    assert len(files) > 30
    wrong = {
        name: [e.message for e in validator.iter_errors(read_yaml(find(name, kind)))] for kind, name in files
    }
    assert not {name: messages for name, messages in wrong.items() if messages}
    assert validator.is_valid(RunConfig().to_dict())


@pytest.mark.parametrize(
    "settings",
    [
        {"selector.d": 3},
        {"local.batch_size": 32, "devices": None},
        {"selector": {"class_path": "my_selector.Mine", "init_args": {"a": 1}}},
        {"model": {"init_args": {"width": 3}}},
        {"updates": "TopK"},
        {"selector": {"class_path": "FedAU", "init_args": {"selector": "PowD"}}},
    ],
)
def test_what_a_file_may_say_fits(validator, settings):
    assert validator.is_valid(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"seeds": 1},
        {"rounds": 0},
        {"rounds": "many"},
        {"precision": "16"},
        {"selector": "Powd"},
        {"selector": {"class_path": "PowD", "init_args": {"dd": 3}}},
        {"selector": {"class_path": "PowD", "d": 3}},
        {"updates": "Topk"},
        {"local": {"batch": 3}},
        {"local": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"learning_rate": 1}}}},
    ],
)
def test_a_typo_does_not(validator, settings):
    assert not validator.is_valid(settings)


def test_the_command_prints_the_schema(capsys):
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["properties"]["clients_per_round"]["description"].startswith("Clients per round (K)")
    assert main(["schema", "x"]) == 2
    assert "flsel schema takes no arguments, got x" in capsys.readouterr().err


def test_completion_knows_every_command():
    assert set(_OPTIONS) == set(COMMANDS)
    assert all(f"{name}" in _parser(None).format_usage() for name in COMMANDS)


def test_bash_completes_commands_settings_and_classes(capsys, tmp_path):
    pytest.importorskip("shtab", reason="shtab is not installed: make test")
    assert main(["completion", "bash"]) == 0
    (tmp_path / "flsel.bash").write_text(capsys.readouterr().out)

    def completed(*words: str) -> set[str]:
        code = (
            f"source {tmp_path / 'flsel.bash'}; COMP_WORDS=(flsel {' '.join(map(repr, words))}); "
            f"COMP_CWORD={len(words)}; _shtab_flsel; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=100)
        return set(done.stdout.split())

    assert {word for word in completed("") if not word.startswith("-")} == set(COMMANDS)
    assert completed("train", "--selector", "Pow") == {"PowD"}
    assert completed("tune", "--max_c") == {"--max_concurrent"}
    assert completed("compare", "--local.batch") == {"--local.batch_size"}
    assert completed("configs", "quick") == {"quickstart"}


def test_completion_names_the_shells(capsys):
    assert main(["completion", "fish"]) == 2
    assert "takes one of bash, zsh, tcsh, got fish" in capsys.readouterr().err
