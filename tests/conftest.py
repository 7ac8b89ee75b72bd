"""What all tests share: property tests without a deadline, and a Ctrl-C that arrives.

How long an example takes says more of the machine than of the code.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forks import Forks
from hypothesis import settings

from flsel.errors import say_once

if not os.environ.get("CI"):  # where Hypothesis has a profile of its own, without a deadline too
    settings.register_profile("flsel", deadline=None)
    settings.load_profile("flsel")

# Ray's processes give way to all others, so that they would wait for the tests in other processes.
os.environ.setdefault("RAY_worker_niceness", "0")

# A shell ignores the one in what it starts in the background, nohup the other, and so does everything started
# from there; flsel keeps it that way, and the tests of Ctrl-C and of hanging up would wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Its conftest gives torch a device for good, in a process that tests/test_standin_device.py starts.
collect_ignore = [] if os.environ.get("FLSEL_STANDIN") else ["standin"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Search for no garbage in what tests import while they are collected, nor in it afterwards.

    These are millions of objects, which stay.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def plugins_of_lightning_are_searched_once() -> None:
    """Lightning searches all installed packages for each Fabric, which takes longer than a small round."""
    registry = sys.modules.get("lightning.fabric.utilities.registry")
    if registry is not None:
        vars(registry)["entry_points"] = functools.cache(vars(registry)["entry_points"])


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Interpreters that have imported torch only."""
    with Forks() as made:
        yield made


@pytest.fixture
def figures_where_they_are_tested(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw no figures, which take longer than small runs, but in tests marked ``figures``."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("figures") is None:
            patch.setattr("flsel.comparison.reporting.figures.write_charts", lambda analysis, folder: [])
            never = property(lambda session: False, lambda session, pictured: None)
            patch.setattr("flsel.runner.session.Session._pictured", never, raising=False)
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def commands_leave_nothing_behind() -> Iterator[None]:
    """Take back what a command that ran in this process set up, so that tests may come in any order."""
    logger = logging.getLogger("flsel")
    before, level, path = logger.handlers[:], logger.level, sys.path[:]
    say_once.cache_clear()
    yield
    sys.path[:] = path  # a command appends the folder that it was started in
    logger.handlers[:] = before
    logger.setLevel(level)
