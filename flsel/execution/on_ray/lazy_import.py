"""Import modules that a library imports but a process rarely uses only when they are used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any


class _Deferred(ModuleType):
    """Stands for a module, which is imported once it is asked for anything."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


class _DeferredLeaf(_Deferred):
    """Lazy stand-in for a module without submodules, of which ``from`` imports ask ``__path__`` first."""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":
            raise AttributeError(name)
        return super().__getattr__(name)


def defer(name: str, *called: str) -> None:
    """Let a module be imported by its first use, in place of its ``import``.

    Args:
        name: Of the module; left alone if it is imported already.
        called: What others import from it by name, only to call it; the call is the module's first use.
    """
    if name in sys.modules:
        return
    module = _DeferredLeaf(name) if called else _Deferred(name)
    if not called:
        # Libraries test whether a package is there, but not a leaf; finding a leaf imports its package.
        module.__spec__ = find_spec(name)
    for function in called:
        setattr(module, function, _later(module, function))
    sys.modules[name] = module


def _later(module: _Deferred, name: str) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        return module.__getattr__(name)(*given, **named)

    return call
