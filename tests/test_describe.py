"""Settings described by plain values are the settings again."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from mymodels import Activated, make_net
from torch import nn, optim
from torch.optim.lr_scheduler import MultiStepLR

from flsel.availability import LDF, MDF
from flsel.config import RunConfig
from flsel.config.fingerprint import fingerprint
from flsel.config.groups import EvaluationConfig, LocalConfig, OutputConfig, TrackConfig
from flsel.config.simulated_time import AsyncConfig, TimeConfig
from flsel.data.data_config import DataConfig, SyntheticConfig
from flsel.devices import LogNormal
from flsel.errors import UserError
from flsel.local.completeness import PDU
from flsel.models import MLP, LogisticRegression
from flsel.objectives import FedProx
from flsel.partition import Dirichlet, FedGSLogNormal, Natural, Shards
from flsel.selectors.md import MD
from flsel.selectors.powd import PowD
from flsel.selectors.uniform import Uniform
from flsel.updates import Median, TopK

# Whole numbers among them: Python's 1 comes back from YAML as 1.0 where a number is asked for.
POSITIVE = st.one_of(st.integers(1, 9), st.floats(1e-6, 1e6))
SHARE = st.floats(0.0, 0.3)

CONFIGS = st.builds(
    RunConfig,
    seed=st.integers(0, 2**31),
    rounds=st.integers(1, 10**6),
    clients=st.one_of(st.none(), st.integers(10, 10**5)),
    clients_per_round=st.integers(1, 10),
    data=st.builds(
        DataConfig,
        name=st.just("mymodels.one_outlier"),  # others take no arguments
        init_args=st.dictionaries(
            st.sampled_from(["a", "b"]), st.one_of(st.integers(), st.text("xyz", min_size=1, max_size=5))
        ),
        validation=SHARE,
        server=SHARE,
        synthetic=st.builds(SyntheticConfig, alpha=POSITIVE, size_max=st.one_of(st.none(), st.just(99))),
    ),
    partition=st.one_of(
        st.builds(Natural),
        st.builds(Dirichlet, alpha=POSITIVE, sizes=st.lists(POSITIVE, min_size=1, max_size=3).map(tuple)),
        st.builds(Shards, per_client=st.integers(1, 5)),
        st.builds(FedGSLogNormal),
    ),
    availability=st.one_of(st.builds(MDF), st.builds(LDF)),
    model=st.sampled_from(
        [LogisticRegression, partial(MLP, hidden=(3,)), make_net, Activated, partial(Activated, act=nn.Tanh)]
    ),
    local=st.builds(
        LocalConfig,
        batch_size=st.integers(1, 99),
        epochs=st.one_of(st.none(), st.integers(1, 9)),
        optimizer=st.one_of(
            st.none(),
            POSITIVE.map(lambda lr: partial(optim.Adam, lr=lr)),
            st.just(partial(optim.SGD, lr=1, nesterov=True, momentum=0.9)),
        ),
        lr_schedule=st.sampled_from([None, partial(MultiStepLR, milestones=[2, 5], gamma=0.5)]),
        backend=st.sampled_from(["auto", "compiled"]),
    ),
    objective=st.builds(FedProx, mu=POSITIVE),
    selector=st.one_of(
        st.builds(Uniform, weights=st.sampled_from(["size", "scaled"])),
        st.builds(MD),
        st.builds(PowD, d=st.one_of(st.none(), st.integers(1, 50))),
    ),
    evaluation=st.builds(EvaluationConfig, target=st.one_of(st.none(), st.floats(0.01, 1.0))),
    track=st.builds(TrackConfig, tags=st.lists(st.text(max_size=5), max_size=2).map(tuple)),
    output=st.builds(OutputConfig, name=st.one_of(st.none(), st.sampled_from(["one", "a b", "run-1"]))),
    quiet=st.booleans(),
)


@settings(max_examples=15)
@given(config=CONFIGS)
def test_settings_survive_the_yaml_file(config: RunConfig) -> None:
    described = config.to_dict()
    read = yaml.safe_load(yaml.safe_dump(described, sort_keys=False))
    again = RunConfig.from_dict(read).to_dict()
    assert again == described
    assert fingerprint(again) == fingerprint(described)


def test_what_was_parsed_builds_what_was_meant() -> None:
    config = RunConfig(
        model=partial(MLP, hidden=(3,)), local=LocalConfig(optimizer=partial(optim.SGD, lr=0.5))
    )
    again = RunConfig.from_dict(config.to_dict())
    net = again.model(num_classes=2, input_shape=(4,))  # type: ignore[call-arg]
    assert [p.shape[0] for p in net.parameters()] == [3, 3, 2, 2]
    assert again.local.optimizer is not None
    assert again.local.optimizer(net.parameters()).param_groups[0]["lr"] == 0.5


CHANGES: dict[str, Any] = {
    "seed": 1, "rounds": 99, "clients": 29, "clients_per_round": 5, "data": DataConfig(validation=0.2),
    "partition": Shards(), "availability": MDF(), "completeness": PDU(), "devices": LogNormal(),
    "time": TimeConfig(over_selection=1.3), "model": MLP, "local": LocalConfig(steps=3),
    "loss": nn.MSELoss,
    "objective": FedProx(), "updates": (TopK(),), "aggregate": Median(),
    "server_optimizer": partial(optim.SGD, lr=0.5), "selector": PowD(),
    "evaluation": EvaluationConfig(every=2), "accelerator": "cpu", "device": 1, "threads": 2,
    "precision": "64-true",
    "output_layer": "classifier", "track": TrackConfig(project="p"), "callbacks": (make_net,),
    "output": OutputConfig(name="x"), "quiet": True, "stop_after_trainings": 9,
    "stop_after_models": 9, "stop_after_bytes": 9, "stop_after_bytes_down": 9, "stop_after_bytes_up": 9,
    "asynchronous": AsyncConfig(concurrency=12),
}  # fmt: skip


@pytest.mark.parametrize("key", list(RunConfig().to_dict()))
def test_the_fingerprint_ignores_only_how_a_run_is_shown(key: str) -> None:
    # Rules of time are refused without devices.
    base = RunConfig(devices=LogNormal()) if key in ("time", "asynchronous") else RunConfig()
    changed = replace(base, **{key: CHANGES[key]})
    same = fingerprint(changed.to_dict()) == fingerprint(base.to_dict())
    assert same == (key in {"track", "callbacks", "output", "quiet"})


def test_the_fingerprint_does_not_tell_1_from_1_point_0() -> None:
    one, other = RunConfig(partition=Dirichlet(alpha=1)), RunConfig(partition=Dirichlet(alpha=1.0))
    assert fingerprint(one.to_dict()) == fingerprint(other.to_dict())
    assert fingerprint(one.to_dict()) != fingerprint(RunConfig(partition=Dirichlet(alpha=1.5)).to_dict())


def test_defaults_that_yaml_cannot_hold_are_left_to_the_class() -> None:
    spec = RunConfig(model=Activated).to_dict()["model"]
    assert spec == {
        "class_path": "mymodels.Activated",
        "init_args": {"act": "torch.nn.modules.activation.ReLU"},
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RunConfig(model=partial(Activated, scale=lambda x: x)), "model.scale must be importable by name"),
    ],
)
def test_what_has_no_import_path_is_refused(config: RunConfig, message: str) -> None:
    with pytest.raises(UserError, match=message):
        config.to_dict()


@pytest.mark.parametrize("value", [Uniform, "PowD", 3])
def test_a_plug_in_from_python_is_an_object(value):
    with pytest.raises(UserError, match="selector must be a Selector object, such as selector=Uniform"):
        RunConfig(selector=value)


@settings(max_examples=20, deadline=None)
@given(config=CONFIGS)
def test_a_config_is_a_value(config):
    plain = config.to_dict()
    for same in (RunConfig.from_dict(plain), copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert same == config
        assert hash(same) == hash(config)
    assert RunConfig.from_dict(yaml.safe_load(str(config))) == config
    assert config != replace(config, seed=config.seed + 1)
    assert config != plain


def test_changes_follow_the_rules_of_the_command_line():
    config = RunConfig(rounds=7, selector=PowD(d=12))
    assert config.with_changes({"selector.d": 9, "local.steps": 3}) == replace(
        config, selector=PowD(d=9), local=LocalConfig(steps=3)
    )
    changed = config.with_changes({"selector": "FedCor", "evaluation": {"every": 2}})
    assert (type(changed.selector).__name__, changed.evaluation.every, changed.rounds) == ("FedCor", 2, 7)
    assert config == RunConfig(rounds=7, selector=PowD(d=12))
    with pytest.raises(UserError, match="there is no setting selector_; did you mean selector"):
        config.with_changes({"selector_": "PowD"})


def test_a_model_object_survives_changes():
    net = nn.Sequential(nn.Flatten(), nn.Linear(60, 10))
    config = RunConfig(model=net)
    assert config.with_changes({"rounds": 3}).model is net
    assert config.with_changes({"model": "LogisticRegression"}) == RunConfig()
    assert RunConfig(model=net) == config != RunConfig(model=nn.Sequential(nn.Flatten(), nn.Linear(60, 10)))
