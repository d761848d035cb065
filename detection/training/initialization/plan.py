"""What a warm start takes from its source, decided from names and shapes alone."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Plan(NamedTuple):
    """Each of our variables is in exactly one of `load`, `skipped`, `mismatched` and `missing`.

    load: path to None, or, where the last axis holds outputs of classes, to the place
        in the source of each of them, int64; -1: that one stays as it is.
    skipped: path to the rule that left it out.
    mismatched: path to our shape and the source's.
    missing: paths that the source does not have.
    unused: names in the source that are not read.
    """

    load: dict[str, np.ndarray | None]
    skipped: dict[str, str]
    mismatched: dict[str, tuple[Shape, Shape]]
    missing: tuple[str, ...]
    unused: tuple[str, ...]


def plan_warm_start(
    ours: Mapping[str, Shape],
    theirs: Mapping[str, Shape],
    *,
    left_out: Mapping[str, str],
    outputs: Mapping[str, np.ndarray],
    widths: Mapping[str, int],
) -> Plan:
    """Decides for every variable.

    Args:
        ours: shapes of the model's variables, by path.
        theirs: shapes in the source, by name.
        left_out: paths not to load, with the rule that says so.
        outputs: for variables whose last axis holds outputs of classes, the place in
            the source of each; -1: none (`source_outputs`).
        widths: length of that axis in the source.
    """
    plan = Plan({}, dict(left_out), {}, (), ())
    missing = []
    for path, shape in ours.items():
        if path in left_out:
            continue
        positions = outputs.get(path)
        expected = shape if positions is None else (*shape[:-1], widths[path])
        if path not in theirs:
            missing.append(path)
        elif theirs[path] != expected:
            plan.mismatched[path] = (expected, theirs[path])
        else:
            plan.load[path] = positions
    unused = tuple(name for name in theirs if name not in plan.load)
    return plan._replace(missing=tuple(missing), unused=unused)
