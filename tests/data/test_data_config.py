import subprocess
import sys

import pytest

from flsel.data.data_config import DataConfig, SyntheticConfig
from flsel.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cifar11"}, r"data.name must be one of .* or an import path, got 'cifar11'"),
        ({"name": "my module.Thing"}, "data.name"),
        ({"name": "npz"}, "data.path must be given for data.name npz"),
        ({"name": "folder"}, "data.path"),
        ({"name": "leaf"}, "data.path"),
        ({"name": "cifar10", "coarse_labels": True}, "data.coarse_labels must not be set"),
        ({"init_args": {"alpha": 3}}, r"data.init_args must be empty \({}\) for data.name synthetic"),
        (
            {"shape": (1, 0)},
            r"data.shape must be a list of one or more whole numbers >= 1 or null, got \[1, 0\]",
        ),
        ({"shape": ()}, "data.shape"),
        ({"validation": -0.1}, r"data.validation must be a number in \[0, 1\), got -0.1"),
        ({"server": 1.5}, r"data.server must be a number in \[0, 1\)"),
        ({"test": float("nan")}, "data.test"),
        ({"validation": 0.5, "server": 0.3, "test": 0.2}, "must be below 1, got 1"),
    ],
)
def test_data_config_refuses(arguments, message):
    with pytest.raises(UserError, match=message):
        DataConfig(**arguments)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("generator", "other"),
        ("variant", "mine"),
        ("alpha", -1.0),
        ("beta", -0.1),
        ("size_mean", float("inf")),
        ("size_std", float("nan")),
        ("size_min", 0),
        ("size_max", 49),
        ("iid_share", 1.1),
        ("shift", -1.0),
        ("samples", 1),
        ("dimension", 0),
        ("classes", 1),
    ],
)
def test_synthetic_config_refuses_and_names_the_key(key, value):
    with pytest.raises(UserError, match=rf"^data\.synthetic\.{key} must be .*, got "):
        SyntheticConfig(**{key: value})


@pytest.mark.parametrize("name", ["synthetic", "mnist", "my.module.Thing"])
def test_data_config_accepts(name):
    assert DataConfig(name=name).name == name


def test_config_needs_no_torch():
    code = "import sys, flsel.data.data_config; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
