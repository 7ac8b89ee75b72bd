"""``flsel dashboard``: a W&B report and saved workspaces over the runs of a project."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from importlib import import_module

from flsel.commands.argv import words
from flsel.commands.set_up_logging import set_up_logging
from flsel.errors import UserError, closest, users_code
from flsel.files import home, naming, write_atomic
from flsel.metrics import SCORE, Score, score_of
from flsel.runner.trackers.wandb_run import has_key, resolved

USAGE = """\
usage: flsel dashboard --project P [--entity E] [--group G] [--keys K,K,...] [--score C] [--folder F]

Make a W&B report and two saved workspaces, one of runs and one of a sweep's trials: curves by variant over
rounds and over costs, rounds to the target, cost against the score, participation, parallel coordinates, and
the table of runs. With an API key they are saved in the project. Without one, or with WANDB_MODE=offline,
their definitions are written and nothing is sent.

  --project P   W&B project of the runs (track.project)
  --entity E    W&B user or team; the key's own if not given
  --group G     show one comparison or sweep only, by its name (track.group)
  --keys K,K    settings that the parallel coordinates show besides, such as selector.d,local.steps
  --score C     what the runs are judged by (evaluation.score), such as test/loss; a metric of your own with
                :higher or :lower behind it, such as test/f1:higher (default: test/accuracy)
  --folder F    where definitions are written, with a key too if it is given (default: dashboard)"""
_OPTIONS = ("project", "entity", "group", "keys", "score", "folder")
_LOG = logging.getLogger("flsel")


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    given = _options(arguments)
    if given is None:
        print(USAGE)
        return 0
    set_up_logging()
    _require()
    from flsel.comparison.dashboard.views import Dashboard, publish

    project, entity = given["project"], given.get("entity", "")
    keys = tuple(key.strip() for key in given.get("keys", "").split(",") if key.strip())
    group, score = given.get("group"), _score(given.get("score", SCORE.column))
    # A default only. The process that wandb starts to read its settings then sends nothing of its own.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    # WANDB_MODE may say online where no key is, and the library would ask for one.
    online = has_key() and resolved() == "online"
    if online and not entity:
        entity = _own_entity()
    if not online or "folder" in given:
        # Without an entity the library builds a report without asking W&B about the project.
        _write(given.get("folder", "dashboard"), Dashboard(project, "", group, keys, score).files())
    if online:
        with users_code(f"the dashboard of {entity}/{project} cannot be saved in W&B"):
            urls = publish(Dashboard(project, entity, group, keys, score), _LOG.warning)
        print("\n".join(urls))
    else:
        print(
            "Nothing was sent: log in with `wandb login` or set WANDB_API_KEY, and the same command saves "
            "the dashboard in W&B."
        )
    return 0


def _options(arguments: Sequence[str]) -> dict[str, str] | None:
    """Return the options by name, or None where help is asked for."""
    given: dict[str, str] = {}
    for key, value in words(arguments):
        if key in ("help", "h"):
            return None
        if key not in _OPTIONS:
            close = closest(key, _OPTIONS)
            advice = f"did you mean --{close}?" if close else f"there are --{', --'.join(_OPTIONS)}."
            raise UserError(f"flsel dashboard has no option --{key}; {advice}")
        if not value:
            raise UserError(f"{key} needs a value: --{key} VALUE.")
        given[key] = value
    if "project" not in given:
        raise UserError("flsel dashboard needs the W&B project of the runs: --project NAME.")
    for key in ("project", "entity"):
        if not re.fullmatch(r"[^/\\#?%:\x00-\x1f]{1,128}", given.get(key, "-")):
            raise UserError(
                f"{key} must be a name of 1 to 128 characters without / \\ # ? % :, got {given[key][:40]!r}."
            )
    return given


def _score(text: str) -> Score:
    """Read what runs are judged by.

    Raises:
        UserError: If it is no column of the test set, or nothing says which way it is better.
    """
    column, _, better = text.partition(":")
    if not re.fullmatch(r"test/[^/:]+", column) or better not in ("", "higher", "lower"):
        raise UserError(f"score must be a column of the test set, such as test/loss, got {text!r}.")
    return score_of(column, better or None, [column], {})


def _require() -> None:
    try:
        import_module("wandb_workspaces")
    except ImportError as error:
        raise UserError(
            f"flsel dashboard needs a package that cannot be imported ({error}): "
            'pip install "flsel[dashboard]".'
        ) from error


def _own_entity() -> str:
    import wandb

    with users_code("W&B does not say whose the API key is"):
        entity = wandb.Api().default_entity
    if not entity:
        raise UserError("W&B knows no default entity of the API key; name it: --entity NAME.")
    return str(entity)


def _write(folder: str, files: dict[str, str]) -> None:
    path = home(folder)
    with naming(path):
        path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_atomic(path / name, text)
    print(
        f"Definitions: {', '.join(str(path / name) for name in files)}\n"
        "They record what this command saves in W&B, to read, to compare and to keep with your code. A chart "
        "(.vl.json) can be pasted into W&B's editor of custom charts; only this command sends the others."
    )
