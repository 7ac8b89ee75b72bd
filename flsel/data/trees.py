"""Examples with several tensors: tuples and dicts of tensors that have one leading dimension."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

Tree: TypeAlias = Any
"""A tensor, or a tuple or dict of trees; None stands for nothing."""


def mapped(change: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """Apply a function to each tensor of a tree."""
    if isinstance(tree, Tensor):  # nearly always, and tests of Mapping are slow
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: mapped(change, part) for name, part in tree.items()}
    if isinstance(tree, tuple):
        parts = [mapped(change, part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return None if tree is None else change(tree)


def leaves(tree: Tree, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a tree, each with its place, such as ``image`` or ``0``; a lone one has none."""
    parts = tree.items() if isinstance(tree, Mapping) else enumerate(tree) if isinstance(tree, tuple) else ()
    if isinstance(tree, Tensor) or hasattr(tree, "read"):  # or what a data set reads later
        yield name, tree
    for key, part in parts:
        yield from leaves(part, f"{name}.{key}" if name else str(key))


def tensors(tree: Tree) -> list[Tensor]:
    """Return the tensors of a tree."""
    return [tensor for _, tensor in leaves(tree)]


def rebuilt(tree: Tree, values: list[Tensor]) -> Tree:
    """Put other tensors in the places of those of a tree."""
    rest = iter(values)
    return mapped(lambda _: next(rest), tree)


def size_of(tree: Tree) -> int:
    """Return the length of the leading dimension."""
    return len(next(iter(tensors(tree))))


def same(one: Tree, other: Tree) -> bool:
    """Tell whether trees have the same places with tensors of one dtype and, but for the length, shape."""
    pairs = [{name: (t.shape[1:], t.dtype) for name, t in leaves(tree)} for tree in (one, other)]
    return pairs[0] == pairs[1]


def described(tree: Tree) -> str:
    """Describe a tree of examples in words: shape and dtype of each tensor of an example."""
    found = [
        f"{name} {list(t.shape[1:])} {t.dtype}".strip().replace("torch.", "") for name, t in leaves(tree)
    ]
    return ", ".join(found) or "nothing"


@dataclass(frozen=True)
class Form:
    """How a data set's own examples hold inputs and targets.

    Attributes:
        inputs: Name of the input where an example is a mapping with one; None otherwise.
        target: Name of the target in a mapping; None where examples are pairs, or have no target.
        paired: Whether examples are pairs (input, target).
        named: Class of a named tuple, which else is a pair, or a mapping by its fields; None for others.
        column: Whether a target is one number in a list, ``[1]``.
    """

    inputs: str | None = None
    target: str | None = None
    paired: bool = True
    named: Any = None
    column: bool = False

    def joined(self, x: Tree, y: Tree) -> Tree:
        """Return a batch as the data set's examples are: a pair, a mapping, or inputs alone."""
        y = y[..., None] if self.column else y
        if self.paired:
            return (x, y) if self.named is None else self.named(x, y)
        whole = x if self.inputs is None else {self.inputs: x}
        whole = whole if self.target is None else {**whole, self.target: y}
        return whole if self.named is None else self.named(*map(whole.get, self.named._fields))

    def parted(self, batch: Tree) -> tuple[Tree, Tree]:
        """Return inputs and targets of a batch that :meth:`joined` made."""
        x: Tree = batch
        y: Tree = None
        if self.paired:
            x, y = batch
        elif self.named is not None or isinstance(batch, Mapping):
            entries = dict(batch) if self.named is None else batch._asdict()
            y = entries.pop(self.target, None)
            x = entries if self.inputs is None else entries[self.inputs]
        return x, y[..., 0] if self.column else y


PAIR = Form()
"""Examples are pairs (input, target)."""


def call(function: Callable[..., Any], x: Tree, asked: Callable[..., Any] | None = None) -> Any:
    """Call a model on inputs: a dict by names, a tuple by places, if it takes them so; else the tree as one.

    Args:
        function: The model.
        x: Inputs.
        asked: Whose arguments decide; by default the function's own.
    """
    if isinstance(x, Mapping) and takes(asked or function, x):
        return function(**x)
    if isinstance(x, tuple) and takes(asked or function, x):
        return function(*x)
    return function(x)


def takes(function: Callable[..., Any], x: Tree) -> bool:
    """Tell whether a function's arguments are the entries of a dict by name, or those of a tuple by place."""
    try:
        signature = inspect.signature(getattr(function, "forward", function))
        signature.bind(**x) if isinstance(x, Mapping) else signature.bind(
            *(x if isinstance(x, tuple) else (x,))
        )
    except TypeError:
        return False
    return True
