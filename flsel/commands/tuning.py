"""``flsel tune``: start or resume a search for settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flsel.commands.argv import Word, parse
from flsel.commands.command_settings import CommandSettings
from flsel.commands.set_up_logging import set_up_logging
from flsel.config.parser import to_types
from flsel.errors import UserError
from flsel_tune.search import start_sweep
from flsel_tune.space_file import space_entries
from flsel_tune.sweep_config import CHANGEABLE, SweepConfig, read_sweep_file
from flsel_tune.sweep_result import Sweep

USAGE = """flsel tune --config FILE [--space FILE] [--trials 32] [--key value ...]
       flsel tune --resume SWEEP [--trials 64] [--space WIDER] [--retry-failed]
       flsel tune --from SWEEP --config FILE [--space FILE] [--trials 32] [--key value ...]"""
DESCRIPTION = """\
Search for the settings of a run. The settings of a sweep are listed below. Give them on the command line or
in a file (--sweep FILE). Every setting of flsel train is a setting of the sweep's runs, on the command line
or in a file (--config FILE).
"""
OWN = CommandSettings(
    "tune", SweepConfig, USAGE, DESCRIPTION, ("sweep", "resume", "retry_failed"), {"from": "start_from"}
)


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
        set_up_logging(quiet=config.quiet)
        start_sweep(config, sweep)
    return 0


def _resume(own: Sequence[Word], others: Sequence[Word]) -> None:
    name = dict(own)["resume"]
    if name is None:
        raise UserError("--resume takes the folder of a sweep: flsel tune --resume SWEEP.")
    before = Sweep.load(name)
    stored = read_sweep_file(str(before.folder / "sweep.yaml"))
    sweep = _parse_sweep(stored, [word for word in own if word[0] not in ("resume", "retry_failed")])
    given = any(key in ("space", "sweep") for key, _ in own)
    space = space_entries(sweep.space, before.config.to_dict())[1] if given else before.space
    _refuse_settings(others, before)
    set_up_logging(quiet=before.config.quiet)
    before.resume_with(sweep, space, retry_failed=dict(own).get("retry_failed", "false") in (None, "true"))


def _refuse_settings(others: Sequence[Word], before: Sweep) -> None:
    """Refuse settings of runs that are not those of the sweep, before they are taken for those of another."""
    try:
        same = not others or parse(others).to_dict() == before.config.to_dict()
    except UserError:  # an argument of the sweep's selector, say, without the selector
        same = False
    if not same:
        given = ", ".join(dict.fromkeys(key for key, _ in others))
        raise UserError(
            f"--resume {before.folder} goes on with the settings in its config.yaml: leave {given} out, or "
            f"start a new sweep with the trials that fit: --from {before.folder}. A resume may change "
            f"{', '.join(CHANGEABLE)}, and widen the space."
        )


def _parse_sweep(stored: Mapping[str, Any], given: Sequence[Word]) -> SweepConfig:
    """Lay settings over each other: a resumed sweep's, files, the command line."""
    laid = dict(stored)
    for key, value in given:
        if value is None:
            raise UserError(
                "--sweep needs a file of the sweep's settings: --sweep FILE."
                if key == "sweep"
                else f"{key} needs a value: --{key} VALUE."
            )
        if key == "sweep":
            laid |= read_sweep_file(value)
    laid |= {key: value for key, value in given if key != "sweep"}
    return SweepConfig(**to_types("", SweepConfig, laid))
