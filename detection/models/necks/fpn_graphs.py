"""Graphs of a BiFPN cell: the inputs of each fusion node, in order.

Ids count the cell's input levels first, finest first, then its nodes in order.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

FpnGraph = Literal["bifpn", "qufpn"]


class Node(NamedTuple):
    """A fusion node: its level, and the ids of its inputs, all lower than its own id."""

    level: int
    inputs: tuple[int, ...]


class _Paths:
    """Nodes in order, and the ids of each level: its input, then its nodes, in the order of the paths."""

    def __init__(self, levels: Iterable[int], nodes: Sequence[Node] = ()) -> None:
        self.ids = {level: [number] for number, level in enumerate(levels)}
        self.nodes = list(nodes)

    def add(self, level: int, *inputs: int) -> None:
        self.nodes.append(Node(level, inputs))
        self.ids[level].append(len(self.ids) + len(self.nodes) - 1)

    def last(self, level: int) -> int:
        return self.ids[level][-1]


def fpn_nodes(graph: FpnGraph | Sequence[tuple[int, tuple[int, ...]]], min_level: int, max_level: int) -> list[Node]:
    """Returns the nodes of one cell between two levels.

    Args:
        graph: a name, or the nodes themselves, each (level, inputs).
        min_level: finest level.
        max_level: coarsest level, above `min_level`.

    Raises:
        ValueError: a node outside of the levels, or with an input that does not come before it; a
            level without a node, and so without an output; an unused input or node.
    """
    if graph == "bifpn":
        return _bifpn(min_level, max_level)
    if graph == "qufpn":
        return _qufpn(min_level, max_level)
    nodes = [Node(*node) for node in graph]
    levels = range(min_level, max_level + 1)
    for number, node in enumerate(nodes):
        own_id = len(levels) + number
        if node.level not in levels:
            raise ValueError(f"node {number} is on level {node.level}; levels are {min_level} to {max_level}")
        if not node.inputs or not all(0 <= given < own_id for given in node.inputs):
            raise ValueError(f"node {number} has inputs {list(node.inputs)}; valid ids are 0 to {own_id - 1}")
    missing = sorted(set(levels) - {node.level for node in nodes})
    if missing:
        raise ValueError(f"level {missing[0]} has no node, so it has no output")
    used = {given for node in nodes for given in node.inputs} | set(output_ids(nodes, min_level, max_level))
    unused = sorted(set(range(len(levels) + len(nodes))) - used)
    if unused:
        raise ValueError(f"id {unused[0]} is neither an output nor the input of a node; ids count the levels first")
    return nodes


def output_ids(nodes: Sequence[Node], min_level: int, max_level: int) -> list[int]:
    """Returns the ids of the last node of each level, finest first."""
    last = {node.level: max_level - min_level + 1 + number for number, node in enumerate(nodes)}
    return [last[level] for level in range(min_level, max_level + 1)]


def _bifpn(min_level: int, max_level: int) -> list[Node]:
    """Top-down from the second coarsest level, then bottom-up to the coarsest (Tan et al., 2020, figure 2(d))."""
    paths = _Paths(range(min_level, max_level + 1))
    for level in reversed(range(min_level, max_level)):
        paths.add(level, paths.last(level), paths.last(level + 1))
    for level in range(min_level + 1, max_level + 1):
        paths.add(level, *paths.ids[level], paths.last(level - 1))
    return paths.nodes


def _qufpn(min_level: int, max_level: int) -> list[Node]:
    """A BiFPN, another one with up and down exchanged, and a node per level that fuses both results.

    Source: google/automl's pull request 580, "QuFPN", made for low precisions.
    """
    levels = range(min_level, max_level + 1)
    first = _bifpn(min_level, max_level)
    second = _Paths(levels, first)  # begins at the inputs again
    for level in levels[1:]:
        second.add(level, second.last(level), second.last(level - 1))
    for level in reversed(levels[:-1]):
        second.add(level, *second.ids[level], second.last(level + 1))
    pairs = list(zip(levels, output_ids(first, min_level, max_level), map(second.last, levels), strict=True))
    for level, of_first, of_second in reversed(pairs):
        second.add(level, of_first, of_second)
    return second.nodes
