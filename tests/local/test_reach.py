"""How far SGD carries a model under a constant gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from flsel.errors import UserError
from flsel.local.schedule import Reach


def displacement(make: Any, steps: int, lr_factor: float) -> float:
    """What the optimizer itself does to a parameter of 4 under a constant gradient of one."""
    param = nn.Parameter(torch.full((), 4.0, dtype=torch.float64))
    optimizer = make([param])
    for group in optimizer.param_groups:
        group["lr"] *= lr_factor
    for _ in range(steps):
        param.grad = torch.ones_like(param)
        optimizer.step()
    return 4.0 - float(param.detach())


@pytest.mark.parametrize(
    "make",
    [
        partial(optim.SGD, lr=0.1),
        partial(optim.SGD, lr=0.1, momentum=0.9),
        partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
        partial(optim.SGD, lr=0.1, momentum=0.5, dampening=0.3),
    ],
)
def test_reach_is_what_the_optimizer_does(make: Any) -> None:
    param = nn.Parameter(torch.zeros(2, 3))
    reach = Reach(make([param]), {"w": param}, [1.0, 0.25])
    for round, factor in enumerate([1.0, 0.25]):
        for steps in ([0, 1, 2], [7, 3, 30]):
            expected = [displacement(make, count, factor) for count in steps]
            assert reach(round, torch.tensor(steps))["w"].tolist() == pytest.approx(expected, abs=1e-12)


def test_plain_sgd_is_option_ii_of_the_paper() -> None:
    param = nn.Parameter(torch.zeros(2))
    reach = Reach(optim.SGD([param], lr=0.1, weight_decay=0.3), {"w": param}, [0.5])
    assert reach(0, torch.tensor([4, 11]))["w"].tolist() == pytest.approx([4 * 0.05, 11 * 0.05], abs=1e-12)


def test_momentum_in_closed_form() -> None:
    param = nn.Parameter(torch.zeros(2))
    reach = Reach(optim.SGD([param], lr=0.1, momentum=0.9), {"w": param}, [1.0])
    expected = 0.1 * sum((1 - 0.9**k) / (1 - 0.9) for k in range(1, 6))
    assert float(reach(0, torch.tensor([5]))["w"]) == pytest.approx(expected, abs=1e-12)


def test_every_group_has_its_own() -> None:
    slow, fast = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    optimizer = optim.SGD([{"params": [slow], "lr": 0.01}, {"params": [fast]}], lr=0.1)
    reach = Reach(optimizer, {"slow": slow, "fast": fast}, [1.0])
    # Trainers write scheduled rates into the groups; the reach keeps its own copy.
    optimizer.param_groups[0]["lr"] = 7.0
    moved: dict[str, Tensor] = reach(0, torch.tensor([2]))
    assert {name: float(value) for name, value in moved.items()} == pytest.approx({"slow": 0.02, "fast": 0.2})


def test_other_optimizers_are_refused() -> None:
    param = nn.Parameter(torch.zeros(2))
    reach = Reach(optim.Adam([param]), {"w": param}, [1.0])
    with pytest.raises(UserError, match=r"must be torch.optim.SGD for this objective, got Adam"):
        reach(0, torch.tensor([1]))


def test_travel_is_counted_in_first_steps() -> None:
    steps = torch.tensor([0, 1, 10, 38])
    slow, fast = nn.Parameter(torch.zeros(9)), nn.Parameter(torch.zeros(2))
    groups = [{"params": [fast], "momentum": 0.5}, {"params": [slow]}]
    reach = Reach(optim.SGD(groups, lr=0.003, momentum=0.9), {"slow": slow, "fast": fast}, [1.0])
    expected = [sum((1 - 0.9**k) / (1 - 0.9) for k in range(1, count + 1)) for count in steps.tolist()]
    assert reach.travel(steps).tolist() == pytest.approx(expected)
    assert (reach.travel(steps)[2:] / steps[2:]).tolist() == pytest.approx([4.1, 7.7], abs=0.05)
    plain = Reach(optim.SGD([slow], lr=0.003), {"slow": slow}, [1.0])
    assert plain.travel(steps).tolist() == steps.tolist()
    adam = Reach(optim.Adam([slow]), {"slow": slow}, [1.0])
    assert adam.travel(steps).tolist() == steps.tolist()
