from typing import Any

import pytest

from detection.models.necks.fpn_graphs import fpn_nodes, output_ids

Oracles = dict[str, dict[str, Any]]


@pytest.mark.parametrize("name", ["bifpn.nodes.l3_l7", "bifpn.nodes.l2_l7", "bifpn.nodes.l3_l8"])
def test_nodes_of_bifpn(oracles: Oracles, name: str) -> None:
    oracle = oracles[name]
    levels = oracle["inputs"]["min_level"], oracle["inputs"]["max_level"]
    nodes = fpn_nodes("bifpn", *levels)
    assert [[node.level, list(node.inputs)] for node in nodes] == oracle["expected"]["nodes"]
    if "output_ids" in oracle["expected"]:
        assert output_ids(nodes, *levels) == oracle["expected"]["output_ids"]


def test_nodes_of_qufpn() -> None:
    """The 21 nodes between levels 3 and 7, as google/automl's tests list them."""
    nodes = fpn_nodes("qufpn", 3, 7)
    assert [(node.level, node.inputs) for node in nodes] == [
        *[(6, (3, 4)), (5, (2, 5)), (4, (1, 6)), (3, (0, 7))],
        *[(4, (1, 7, 8)), (5, (2, 6, 9)), (6, (3, 5, 10)), (7, (4, 11))],
        *[(4, (1, 0)), (5, (2, 13)), (6, (3, 14)), (7, (4, 15))],
        *[(6, (3, 15, 16)), (5, (2, 14, 17)), (4, (1, 13, 18)), (3, (0, 19))],
        *[(7, (12, 16)), (6, (11, 17)), (5, (10, 18)), (4, (9, 19)), (3, (8, 20))],
    ]
    assert output_ids(nodes, 3, 7) == [25, 24, 23, 22, 21]


@pytest.mark.parametrize("levels", [(3, 4), (2, 7), (3, 8)])
def test_the_nodes_of_both_graphs_are_valid_as_own_ones(levels: tuple[int, int]) -> None:
    for nodes in (fpn_nodes("bifpn", *levels), fpn_nodes("qufpn", *levels)):
        assert fpn_nodes([(node.level, node.inputs) for node in nodes], *levels) == nodes


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([(3, (0, 1)), (6, (1, 2))], "node 1 is on level 6; levels are 3 to 4"),
        ([(3, (0, 1)), (4, (1, 3))], r"node 1 has inputs \[1, 3\]; valid ids are 0 to 2"),
        ([(3, ()), (4, (1, 2))], r"node 0 has inputs \[\]; valid ids are 0 to 1"),
        ([(3, (0, 1))], "level 4 has no node, so it has no output"),
        ([(3, (0, 1)), (3, (0, 1)), (4, (1, 3))], "id 2 is neither an output nor the input of a node"),
        ([(3, (0, 0)), (4, (0, 2))], "id 1 is neither an output nor the input of a node"),
    ],
)
def test_invalid_nodes_are_refused(nodes: list[tuple[int, tuple[int, ...]]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fpn_nodes(nodes, 3, 4)
