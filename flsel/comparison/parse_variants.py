"""Read what a user wants compared: selectors with arguments, files of variants, grids of scenarios, seeds."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flsel.comparison.config_differences import changes_between, shown
from flsel.comparison.grid import Scenario, Tuning, Variant
from flsel.config import RunConfig
from flsel.config.fingerprint import PRESENTATION
from flsel.config.layers import by_key, unknown_key
from flsel.config.schema import groups, keys, plugins
from flsel.errors import UserError, located, short
from flsel.files import home
from flsel.files.yaml import read_yaml

# What all variants of a comparison share: a difference in one of these would be the result.
SHARED = (
    "rounds",
    "clients",
    "clients_per_round",
    "data",
    "partition",
    "availability",
    "completeness",
    "evaluation",
    "precision",
)
MACHINE = ("seed", "accelerator", "device", "threads", *PRESENTATION)
# What a comparison sets in all its runs, which execute every round.
_OWN = ("seed", "evaluation.target", "evaluation.stop_at_target", *PRESENTATION)
_LONGEST_NAME = 200


def read_selectors(text: str) -> list[Variant]:
    """Read ``Uniform,PowD:d=12,HiCS``: selectors, each with arguments behind colons.

    Raises:
        UserError: If one is malformed or named twice.
    """
    variants = []
    for item in _items(text, "selectors"):
        selector, *arguments = item.split(":")
        changes: dict[str, Any] = {"selector": selector}
        for argument in arguments:
            name, equals, value = argument.partition("=")
            if not (name and equals and value) or name == "class_path" or f"selector.{name}" in changes:
                raise UserError(
                    f"selectors: an argument is given once, as NAME:KEY=VALUE, such as PowD:d=12, "
                    f"got {item!r}."
                )
            changes[f"selector.{name}"] = value
        variants.append(Variant(item, changes))
    return variants


def read_variants(path: str, base: Mapping[str, Any]) -> list[Variant]:
    """Read a file of variants.

    Args:
        path: A YAML file: by name, settings to change (nested or dotted) or the path of a config such as a
            sweep's ``best.yaml``; or itself such a config: one variant.
        base: The comparison's config as plain values.

    Raises:
        UserError: If the file is unreadable, or an entry is neither.
    """
    file = home(path)
    with located(path):
        loaded = read_yaml(file)
    if loaded.keys() & (keys().keys() | groups()):
        name = file.parent.name if file.name == "best.yaml" else file.stem
        return [_from_config(name, file, base)]
    return [make_variant(name, entry, path, file.parent, base) for name, entry in loaded.items()]


def all_variants(
    made: Sequence[Variant], selectors: str | None, path: str | None, base: Mapping[str, Any]
) -> list[Variant]:
    """Return the variants of a command: made in Python, named as selectors, and in a file.

    Raises:
        UserError: If something is malformed, or two have one name.
    """
    found = [*made, *([] if selectors is None else read_selectors(selectors))]
    found += [] if path is None else read_variants(path, base)
    check_names(found)
    return found


def check_names(variants: Sequence[Variant]) -> None:
    """Refuse two variants of one name.

    Raises:
        UserError: If there are such.
    """
    names = [variant.name for variant in variants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{twice} names two variants; give one of them another name in the file.")


def make_variant(name: Any, entry: Any, where: str, folder: Path, base: Mapping[str, Any]) -> Variant:
    """Make a variant of an entry.

    Args:
        name: Its name.
        entry: Settings to change (nested or dotted), or the path of a config.
        where: Where it stands, for messages.
        folder: What the path starts from.
        base: The comparison's config as plain values.

    Raises:
        UserError: If it is neither, or cannot be a variant.
    """
    _check_name(name, where)
    if isinstance(entry, str) and entry.endswith((".yaml", ".yml")):
        return _from_config(str(name), folder / home(entry), base)
    if not isinstance(entry, Mapping):
        raise UserError(
            f"{where}: {name} must be a mapping of settings, such as {{selector: PowD}}, or {{}} for the "
            f"comparison's own, or the path of a config, got {short(repr(entry), 60)}."
        )
    changes = _dotted(entry, f"{where}: {name}")
    placed = next((key for key in changes if key in _OWN or key.split(".")[0] in _OWN), None)
    if placed:
        raise UserError(f"{where}: {name} must not set {placed}, which the comparison sets.")
    return Variant(str(name), changes)


def _check_name(name: Any, path: str) -> None:
    """Refuse what no table can show as the name of a variant, or YAML has made something else of.

    Raises:
        UserError: If it is such a name.
    """
    plain = str(name)
    readable = plain.isprintable() and plain.strip() and len(plain) <= _LONGEST_NAME
    if name is None or isinstance(name, bool) or not readable:
        raise UserError(
            f"{path}: a variant's name must be a text of 1 to {_LONGEST_NAME} printable characters, got "
            f"{short(repr(name), 60)}; put it in quotes."
        )


def read_grid(texts: Iterable[str]) -> list[Scenario]:
    """Read ``availability=IDL,LN``, ...: the product of all values of all keys.

    Raises:
        UserError: If one is malformed, or varies what a comparison does not.
    """
    axes = list[tuple[str, list[tuple[str, Any]]]]()
    for text in texts:
        key, equals, listed = text.partition("=")
        values = [value.strip() for value in listed.split(",") if value.strip()]
        if not equals or not values:
            raise UserError(f"grid must be KEY=VALUE,VALUE, such as availability=IDL,LN, got {text!r}.")
        axes.append((key.strip(), [(value, value) for value in values]))
    return scenarios_of(axes)


def scenarios_of(axes: Iterable[tuple[str, Sequence[tuple[str, Any]]]]) -> list[Scenario]:
    """Return the product of all values of all keys.

    Args:
        axes: By key its values, each with what it is called.

    Raises:
        UserError: If a key is there twice, or a comparison does not vary it.
    """
    seen = list[list[tuple[str, str, Any]]]()
    for name, values in axes:
        (key,) = by_key({name: None})
        top = key.split(".")[0]
        if top in ("seed", "selector"):
            raise UserError(f"grid must vary the settings around, and {key} is varied by --{top}s.")
        if top in PRESENTATION:
            raise UserError(f"grid must vary what a run computes, and {key} says where it is shown.")
        if key in _OWN:
            raise UserError(f"grid must not vary {key}, which the comparison sets (--target).")
        if key in (axis[0][0] for axis in seen):
            raise UserError(f"grid must vary {key} once: list all of its values behind one {key}=.")
        called = [called for called, _ in values]
        if len(set(called)) < len(called):
            raise UserError(f"grid must have different values, got {key + '=' + ','.join(called)!r}.")
        seen.append([(key, called, value) for called, value in values])
    if not seen:
        return [Scenario()]
    return [
        Scenario(
            ", ".join(f"{key}={called}" for key, called, _ in chosen),
            {key: value for key, _, value in chosen},
        )
        for chosen in itertools.product(*seen)
    ]


# No comparison finishes that many runs of one variant.
MOST_SEEDS = 10_000


def read_seeds(text: str) -> tuple[int, ...]:
    """Read seeds: ``5`` is seeds 1 to 5, ``1..10`` a range, ``1,2,7`` a list.

    Raises:
        UserError: If it is something else.
    """
    span = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", text.strip())
    parts = [part.strip() for part in text.split(",")]
    if span and int(span[1]) <= int(span[2]):
        seeds: Sequence[int] = range(int(span[1]), int(span[2]) + 1)
    elif not all(re.fullmatch(r"\d{1,9}", part) for part in parts):
        raise UserError(
            f"seeds must be a number such as 5, a range 1..10 or a list 1,2,7, got {short(text, 60)!r}."
        )
    elif len(parts) == 1:
        seeds = range(1, int(parts[0]) + 1)
    else:
        seeds = [int(part) for part in parts]
    if not 1 <= len(seeds) <= MOST_SEEDS:
        raise UserError(f"seeds must be 1 to {MOST_SEEDS:,} of them, got {len(seeds):,}.")
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        raise UserError(f"seeds must be different numbers, and {twice} stands there twice.")
    return tuple(seeds)


def _items(text: str, what: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items:
        raise UserError(f"{what} must name at least one, such as Uniform,PowD:d=12.")
    if len(set(items)) < len(items):
        raise UserError(f"{what} must differ from one another, got {text!r}.")
    return items


def _dotted(settings: Mapping[Any, Any], where: str) -> dict[str, Any]:
    with located(where):
        found = by_key(settings)
        for key in found:
            if key not in keys() and not any(key.startswith(f"{plugin}.") for plugin in plugins()):
                raise unknown_key(key)
    return found


def _from_config(name: str, path: Path, base: Mapping[str, Any]) -> Variant:
    """Make a variant of a whole config: what it has of its own, if it fits the comparison's."""
    tuned = tuning_in(path.parent) if path.name == "best.yaml" else None
    return from_config(name, RunConfig.from_file(path).to_dict(), base, f"{name} ({path})", tuned)


def from_config(
    name: str, other: Mapping[str, Any], base: Mapping[str, Any], where: str, tuned: Tuning | None = None
) -> Variant:
    """Make a variant of what a whole config has of its own.

    Args:
        name: The variant's name.
        other: The config as plain values.
        base: The comparison's, likewise.
        where: Where it stands, for messages.
        tuned: Where it was searched.

    Raises:
        UserError: If it differs in what all variants share.
    """
    foreign = {
        key: pair
        for key, pair in changes_between(base, other).items()
        if key.split(".")[0] in SHARED and not key.startswith("evaluation.")
    }
    if foreign:
        raise UserError(
            f"variant {where} has other settings than the comparison, so that its lead would be "
            f"theirs: {shown(foreign)}; compare under its own --config, or list its settings in a file."
        )
    own = {
        key: value
        for key, value in other.items()
        if key not in (*SHARED, *MACHINE) and value != base.get(key)
    }
    return Variant(name, _dotted(own, where), tuned)


def tuning_in(folder: Path) -> Tuning | None:
    """Say how a sweep searched, by the files in its folder; None if it is no sweep's."""
    sweep, config = folder / "sweep.yaml", folder / "config.yaml"
    if not (sweep.is_file() and config.is_file()):
        return None
    with located(str(folder)):
        searched, run = read_yaml(sweep), read_yaml(config)
    seeds: Sequence[int] = searched.get("seeds") or [run.get("seed", 0)]
    return Tuning(str(folder), tuple(seeds), int(searched.get("trials", 0)), int(run.get("rounds", 0)))
