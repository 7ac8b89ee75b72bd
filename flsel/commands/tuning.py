"""``flsel tune``: search for settings, or go on with a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flsel.commands.argv import Word, parse
from flsel.commands.command_settings import Own
from flsel.commands.console import set_up_logging
from flsel.config import RunConfig
from flsel.config.describe import describe
from flsel.config.parser import parse_file, to_types
from flsel.errors import UserError, located
from flsel.files import check_folder, home
from flsel.files.yaml import read_yaml
from flsel_tune.config import CHANGEABLE, SweepConfig
from flsel_tune.plan import check_schedule, make_plan
from flsel_tune.space_file import make_space, read_space, to_plain
from flsel_tune.sweep import resume, start

USAGE = """flsel tune --config FILE [--space FILE] [--trials 32] [--key value ...]
       flsel tune --resume SWEEP [--trials 64] [--retry-failed]"""
DESCRIPTION = """\
Search for the settings of a run. A sweep has the settings below, on the command line or in a file (--sweep
FILE); every setting of flsel train is one of its runs', on the command line or in a file (--config FILE).
"""
OWN = Own("tune", SweepConfig, USAGE, DESCRIPTION, ("sweep", "resume", "retry_failed"))


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given = OWN.split(arguments)
    if given is None:
        print(OWN.parser().format_help())
        return 0
    own, others = given
    if any(key == "resume" for key, _ in own):
        _resume(own, others)
    else:
        if any(key == "retry_failed" for key, _ in own):
            raise UserError("--retry-failed goes with --resume: flsel tune --resume SWEEP --retry-failed.")
        sweep = _parse_sweep({}, own)
        config = parse(others)
        check_schedule(sweep, config.rounds)
        set_up_logging(quiet=config.quiet)
        entries = None if sweep.space == "auto" else read_space(sweep.space)
        start(make_plan(config, sweep, entries))
    return 0


def _resume(own: Sequence[Word], others: Sequence[Word]) -> None:
    folder = _folder(dict(own)["resume"])
    stored = _sweep_file(str(folder / "sweep.yaml"))
    entries = read_space(str(folder / "space.yaml"))
    config = parse_file(folder / "config.yaml")
    with located(str(folder / "sweep.yaml")):
        before = _parse_sweep(stored, [])
    with located(str(folder / "space.yaml")):
        make_space(entries, describe(config))
    sweep = _parse_sweep(stored, [word for word in own if word[0] not in ("resume", "retry_failed")])
    _refuse_change(before, sweep, folder)
    if any(key in ("space", "sweep") for key, _ in own):
        _refuse_other_space(sweep, entries, config, folder)
    if others and describe(parse(others)) != describe(config):
        raise UserError(
            f"--resume {folder} goes on with the settings in its config.yaml, and the ones given are others; "
            "leave them out, or start a new sweep."
        )
    set_up_logging(quiet=config.quiet)
    retry = dict(own).get("retry_failed", "false") in (None, "true")
    resume(make_plan(config, sweep, entries), folder, retry_failed=retry)


def _refuse_change(before: SweepConfig, after: SweepConfig, folder: Path) -> None:
    old, new = asdict(before), asdict(after)
    changed = [name for name in old if old[name] != new[name] and name not in (*CHANGEABLE, "space")]
    if (before.gpus > 0) != (after.gpus > 0):
        changed = ["gpus"]
    if changed:
        raise UserError(
            f"{changed[0]} must stay {old[changed[0]]} when {folder} is resumed, got {new[changed[0]]}; "
            "start a new sweep to change it."
        )


def _refuse_other_space(
    sweep: SweepConfig, entries: Mapping[Any, Any], config: RunConfig, folder: Path
) -> None:
    described = describe(config)
    given = None if sweep.space == "auto" else read_space(sweep.space)
    if to_plain(make_space(given, described)) != to_plain(make_space(entries, described)):
        raise UserError(
            f"--resume {folder} is a sweep of another space than {sweep.space}: leave --space out to go on "
            f"with {folder / 'space.yaml'}, or start a new sweep."
        )


def _folder(name: str | None) -> Path:
    if name is None:
        raise UserError("--resume takes the folder of a sweep: flsel tune --resume SWEEP.")
    folder = home(name)
    check_folder(folder, "sweep", "config.yaml", "sweep.yaml", "space.yaml")
    return folder


def _parse_sweep(stored: Mapping[str, Any], given: Sequence[Word]) -> SweepConfig:
    """Lay settings over each other: a resumed sweep's, files, the command line."""
    laid = dict(stored)
    for key, value in given:
        if key == "sweep":
            laid |= _sweep_file(value)
    for key, value in given:
        if value is None:
            raise UserError(f"{key} needs a value: --{key} VALUE.")
        if key != "sweep":
            laid[key] = value
    return SweepConfig(**to_types("", SweepConfig, laid))


def _sweep_file(path: str | None) -> Mapping[str, Any]:
    if path is None:
        raise UserError("--sweep needs a file of the sweep's settings: --sweep FILE.")
    with located(path):
        loaded = read_yaml(home(path))
        for key in loaded:
            if key not in OWN.names:
                raise UserError(f"there is no setting {key} of a sweep{OWN.close(str(key))}")
    return {str(key): value for key, value in loaded.items()}
