"""Split a traced step by what its parts depend on, so that each is computed as rarely as possible."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from torch import fx

from flsel.local.compiled.trace import Traced


class When(IntEnum):
    """How often a value changes."""

    ONCE = 0
    VISIT = 1
    LABELS = 2
    STEP = 3


@dataclass(frozen=True)
class GraphParts:
    """A step in three functions.

    Attributes:
        visit: Maps the visit's inputs to what stays the same in all its steps.
        labels: Maps ``visit``'s outputs and the labels of a step to what does not depend on the model; it
            works under ``vmap`` over steps.
        step: Maps parameters, ``visit``'s outputs, ``labels``' outputs and inputs to gradients.
        params, constants, terms: Number of the parameters, of ``visit``'s and of ``labels``' outputs.
    """

    visit: fx.GraphModule
    labels: fx.GraphModule
    step: fx.GraphModule
    params: int
    constants: int
    terms: int


def split(traced: Traced) -> GraphParts:
    """Split a tidied graph."""
    graph = traced.graph.graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    params, rest = places[: traced.params], places[traced.params :]
    visit, rest = rest[: traced.visit], rest[traced.visit :]
    labels, (x,) = rest[: traced.labels], rest[traced.labels :]
    when = _ages(graph, visit, labels)
    constants = _crossing(graph, when, When.VISIT)
    terms = [n for n in _crossing(graph, when, When.LABELS) if when[n] is When.LABELS]
    gradients = list(graph.output_node().args[0])  # type: ignore[arg-type]
    return GraphParts(
        visit=_part(traced.graph, visit, constants),
        labels=_part(traced.graph, [*constants, *labels], terms),
        step=_part(traced.graph, [*params, *constants, *terms, x], gradients),
        params=len(params),
        constants=len(constants),
        terms=len(terms),
    )


def _ages(graph: fx.Graph, visit: list[fx.Node], labels: list[fx.Node]) -> dict[fx.Node, When]:
    """Tell for every node how often its value changes."""
    when = dict.fromkeys(visit, When.VISIT) | dict.fromkeys(labels, When.LABELS)
    for node in graph.nodes:
        if node.op == "placeholder":
            when.setdefault(node, When.STEP)
        else:
            when[node] = max((when[n] for n in node.all_input_nodes), default=When.ONCE)
    return when


def _crossing(graph: fx.Graph, when: dict[fx.Node, When], level: When) -> list[fx.Node]:
    """List the values at or below a level that something above it reads; those of ONCE are recomputed."""
    return [
        node
        for node in graph.nodes
        if When.ONCE < when[node] <= level and any(when[user] > level for user in node.users)
    ]


def _part(module: fx.GraphModule, inputs: list[fx.Node], outputs: list[fx.Node]) -> fx.GraphModule:
    """Cut the part of a graph out that leads from some nodes to others."""
    part = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: part.placeholder(f"in_{i}") for i, node in enumerate(inputs)}
    needed: set[fx.Node] = set()
    open_ = [node for node in outputs if node not in copies]
    while open_:
        node = open_.pop()
        if node not in needed:
            needed.add(node)
            open_ += [n for n in node.all_input_nodes if n not in copies]
    for node in module.graph.nodes:
        if node in needed:
            copies[node] = part.node_copy(node, lambda n: copies[n])
    part.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(module, part)
