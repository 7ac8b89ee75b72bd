"""The settings of a run as a JSON schema, by which editors check and complete a YAML file."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Literal, get_args, get_origin

from docstring_parser import parse

from flsel.arguments import Argument, Range, alternatives, arguments, takes_any
from flsel.config.plugin import Plugin, items, plugin
from flsel.config.run_settings import RunSettings
from flsel.config.schema import keys, plugins

Schema = dict[str, Any]
_PLAIN: Mapping[Any, Schema] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    type(None): {"type": "null"},
}


def json_schema() -> Schema:
    """Return the schema (draft 2020-12) of a file for ``--config``.

    It knows the keys, and the types and ranges of single values. What depends on several values it does not.
    """
    known = dict[str, Schema]()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Settings of a run of flsel",
        **_group(RunSettings, known),
        "$defs": known,
    }


def _group(made: type, known: dict[str, Schema]) -> Schema:
    """Describe a group of settings; a key may be written with dots, as on the command line."""
    told, properties, inner = _described(made), dict[str, Schema](), list[str]()
    for name, argument in arguments(made).items():
        a_class = plugin(argument.hint) is not None
        a_group = is_dataclass(argument.hint) and not a_class
        described = _group(argument.hint, known) if a_group else _argument(argument, known)
        properties[name] = described | _said(told.get(name))
        if a_class or a_group:
            inner.append(name)
    return {
        "type": "object",
        "properties": properties,
        "patternProperties": {f"^({'|'.join(inner)})\\.": True} if inner else {},
        "additionalProperties": False,
    }


def _argument(argument: Argument, known: dict[str, Schema]) -> Schema:
    asked, each = plugin(argument.hint), items(argument.hint)
    if any(kind is not None and kind.base not in _bases() for kind in (asked, each)):
        return {}  # something to call, of a library's class
    if each is not None:
        return {"anyOf": [{"type": "array", "items": _class(each, known)}, _class(each, known)]}
    if asked is not None:
        null = [_PLAIN[type(None)]] if type(None) in alternatives(argument.hint) else []
        return {"anyOf": [_class(asked, known), *null]}
    parts = [_plain(part, argument.range) for part in alternatives(argument.hint)]
    found: Schema = parts[0] if len(parts) == 1 else {"anyOf": parts}
    if argument.default is None and {} not in parts:  # a default of None that the type does not declare
        return {"anyOf": [*parts, _PLAIN[type(None)]]}
    return {} if {} in parts else found


@functools.cache
def _bases() -> frozenset[type]:
    """Return what the classes are derived from that the settings of a run name."""
    listed = (items(argument.hint) for argument in keys().values())
    return frozenset(asked.base for asked in (*plugins().values(), *listed) if asked is not None)


def _plain(hint: Any, within: Range | None) -> Schema:
    """Describe a plain type; a type that YAML cannot write, such as a tensor, allows everything."""
    origin, inner = get_origin(hint) or hint, get_args(hint)
    if hint in (int, float) and within is not None:
        ends = {"minimum": within.low, "maximum": within.high}
        ends |= {"exclusiveMinimum": within.above, "exclusiveMaximum": within.below}
        return _PLAIN[hint] | {name: end for name, end in ends.items() if end is not None}
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (tuple, list, Sequence):
        parts = [_plain(part, within) for each in inner[:1] for part in alternatives(each)]
        return {"type": "array"} | ({"items": {"anyOf": parts}} if parts and {} not in parts else {})
    return {"type": "object"} if origin in (dict, Mapping) else {}


def _class(asked: Plugin, known: dict[str, Schema]) -> Schema:
    """Describe a class by its name, its import path, or with arguments."""
    name = asked.base.__name__
    if name not in known:
        known[name] = {}  # a class may take another of its kind
        classes = asked.classes()
        path = {"anyOf": [{"enum": [*classes]}, {"type": "string", "pattern": r"\."}]}
        rules = [_init_args(asked, made, known) for made in classes.values()]
        known[name] = {
            "anyOf": [
                path,
                {
                    "type": "object",
                    "properties": {"class_path": path, "init_args": {"type": ["object", "null"]}},
                    "additionalProperties": False,
                    "allOf": rules,
                },
            ]
        }
    return {"$ref": f"#/$defs/{name}"}


def _init_args(asked: Plugin, made: type, known: dict[str, Schema]) -> Schema:
    """Describe the arguments of one class, where its name or its path is given."""
    told, taken = _described(made), [*arguments(made).values()][asked.given :]
    properties = {each.name: _argument(each, known) | _said(told.get(each.name)) for each in taken}
    name = made.__qualname__
    names = [name, f"{asked.home}.{name}", f"{made.__module__}.{name}"]
    described = {"properties": properties, "additionalProperties": takes_any(made)}
    return {
        "if": {"properties": {"class_path": {"enum": names}}, "required": ["class_path"]},
        "then": {"properties": {"init_args": described}},
    }


def _described(made: Callable[..., Any]) -> dict[str, str]:
    """Return what a class says of its arguments."""
    told = parse(inspect.getdoc(made) or "").params
    return {each.arg_name: " ".join((each.description or "").replace("``", "`").split()) for each in told}


def _said(text: str | None) -> Schema:
    return {"description": text} if text else {}
