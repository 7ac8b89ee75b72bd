"""One dataset for all trials: no copy, and none where trials have their own."""

from __future__ import annotations

import pickle
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from spaces import config_of

from flsel.config import RunConfig
from flsel.data.data_config import DataConfig
from flsel.data.sources import load_source
from flsel.execution.on_ray.shared_data import pack, unpack
from flsel.partition import IID
from flsel.runner.build import build
from flsel_tune.space_file import make_space
from flsel_tune.sweep_plan import _shared_source

LAM = make_space({"selector.lam": {"type": "uniform", "low": 0, "high": 1}}, config_of("HiCS"))
DATA = make_space({"data.server": {"type": "uniform", "low": 0, "high": 0.1}}, config_of("HiCS"))


@pytest.fixture
def config(tmp_path):
    """A run on images in a file."""
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "images.npz",
        x_train=rng.integers(0, 256, (200, 6, 6), dtype=np.uint8),
        y_train=np.arange(200) % 4,
        x_test=rng.integers(0, 256, (40, 6, 6), dtype=np.uint8),
        y_test=np.arange(40) % 4,
    )
    data = DataConfig(name="npz", path=str(tmp_path / "images.npz"), validation=0.1)
    return RunConfig(clients=5, clients_per_round=2, data=data, partition=IID(), accelerator="cpu")


def parts(source):
    sets = [part for part in (source.train, source.test, source.validation) if part is not None]
    return [tensor for part in sets for tensor in (part.x, part.y)]


def arrays(packed):
    return [values for part in packed.arrays.values() for values, _ in part]


def test_packing_copies_nothing(config):
    source = _shared_source(config, LAM)
    packed = pack(source)
    again = unpack(packed)
    for before, array, after in zip(parts(source), arrays(packed), parts(again), strict=True):
        assert before.data_ptr() == array.ctypes.data == after.data_ptr()
        assert torch.equal(before, after)
        assert before.dtype == after.dtype
    assert len(parts(again)) == 4
    assert again.validation is None
    assert (again.num_classes, again.name) == (source.num_classes, source.name)


def test_what_goes_beside_the_arrays_is_small(config):
    """Pickled, a view of a tensor brings all of it along, and every trial would have its own copy."""
    packed = pack(_shared_source(config, LAM))
    assert len(pickle.dumps(packed.rest)) < packed.arrays["train"][0][0].nbytes / 2


def test_a_validation_set_of_its_own_is_kept(config):
    source = _shared_source(config, LAM)
    packed = pack(replace(source, validation=source.test, test=None))
    again = unpack(packed)
    assert again.test is None
    assert torch.equal(again.validation.x, source.test.x)


def test_pages_that_may_not_be_written_are_no_reason_for_a_warning(config):
    """Ray maps them read-only; a run must not write to them either."""
    packed = pack(_shared_source(config, LAM))
    for array in arrays(packed):
        array.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        server = build(config, unpack(packed)).server
        server.step()
    for array in arrays(packed):
        assert not array.flags.writeable


def test_a_run_on_the_shared_dataset_is_the_same(config):
    own = build(config).server
    shared = build(config, unpack(pack(_shared_source(config, LAM)))).server
    for server in (own, shared):
        server.step()
    assert all(torch.equal(own.params[name], shared.params[name]) for name in own.params)


def test_a_dataset_that_trials_do_not_share_is_not_loaded(config):
    assert _shared_source(config, DATA) is None
    synthetic = replace(config, data=DataConfig(name="synthetic"))
    assert _shared_source(synthetic, LAM) is None


def test_the_shared_dataset_is_what_runs_load(config):
    loaded = load_source(config.data, clients=5, seed=0)
    for one, other in zip(parts(_shared_source(config, LAM)), parts(loaded), strict=True):
        assert torch.equal(one, other)
