"""What a trial's process leaves unimported, and that whoever asks for it gets it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import flsel.execution.on_ray.actor
loaded = {name for name in sys.modules if name.startswith(("pandas.", "optuna", "ray.data."))}
assert not loaded, loaded
from importlib.util import find_spec
assert find_spec("pandas").origin and find_spec("ray.data").origin
assert "pandas.core" not in sys.modules

import ray, ray.tune
assert ray.data.Dataset.__module__ == "ray.data.dataset"
from pandas.api.types import is_numeric_dtype
import pandas as pd
assert is_numeric_dtype(pd.DataFrame({"a": [1]}).a)
assert sys.modules["pandas"].DataFrame is pd.DataFrame
try:
    ray.tune.ResultGrid()
except TypeError as error:
    assert "experiment_analysis" in str(error)
from ray.tune.result_grid import ResultGrid
assert isinstance(ResultGrid, type)
"""


def test_a_trials_process_imports_what_it_leaves_out_once_that_is_used():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
