"""Taking the weights of an earlier training over into a new one."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detection.models.detector import Detector
from detection.training.engine.variable_paths import matching_paths
from detection.training.initialization.class_outputs import (
    COCO_CLASS_COUNTS,
    Category,
    coco_classes,
    same_categories,
    source_outputs,
)
from detection.training.initialization.plan import Plan, plan_warm_start
from detection.training.initialization.weight_source import WeightSource
from schemas.config.initialization import FineTuneType
from schemas.config.section import PatternMatch
from schemas.errors import DataError


class WarmStart(NamedTuple):
    """What `warm_start` did.

    source: the checkpoint that was read.
    plan: what became of each variable.
    averages: of how many variables the average was taken.
    new_categories: names of those whose class outputs stay fresh.
    coco_ids: the source tells no categories, and its class outputs are taken for COCO's ids.
    """

    source: str
    plan: Plan
    averages: int
    new_categories: tuple[str, ...]
    coco_ids: bool = False


class _Outputs(NamedTuple):
    """The variables of the class outputs: which are left out, and where the others' rows lie in the source."""

    left_out: Mapping[str, str]
    positions: Mapping[str, np.ndarray]
    widths: Mapping[str, int]
    new_categories: tuple[str, ...]
    coco_ids: bool = False


def warm_start(
    model: Detector,
    source: WeightSource,
    *,
    categories: Sequence[Category],
    fine_tune_type: FineTuneType,
    skip: Sequence[str] = (),
    skip_mismatch: bool = False,
    match: PatternMatch = "start",
) -> WarmStart:
    """Sets the model's variables from `source`; those it does not set stay as they are.

    Args:
        model: built.
        source: whose weights.
        categories: that `model` is trained for, in the order of its classes.
        fine_tune_type: as the TF Object Detection API names them.  `classification`: the
            backbone.  `detection`: everything, but the outputs of classes only for categories
            that both sides have.  `full`: everything; where the source tells its
            categories, they have to be ours, else its classes are taken for ours.
            A source that tells none, but has an output for each of COCO's ids, as
            google/automl's releases do, has COCO's categories.
        skip: regular expressions, matched against our variables' paths.
        skip_mismatch: pass over variables that the source lacks or has in another
            shape, and over different categories.
        match: of `skip`; see `matching_paths`.

    Raises:
        DataError: without `skip_mismatch`, one of these; nothing would be loaded; or
            a value cannot be read or is not finite.
        ConfigError: an expression that matches nothing.
    """
    ours = {variable.path: tuple(variable.shape) for variable in model.variables}
    left_out: dict[str, str] = {}
    for expression in skip:
        for path in matching_paths(model.variables, [expression], key="train.init.skip", match=match):
            left_out.setdefault(path, expression)
    if fine_tune_type == "classification":
        backbone = {variable.path for variable in model.backbone_variables}
        left_out = {path: _rule(fine_tune_type) for path in ours if path not in backbone} | left_out
    outputs = _class_outputs(model, source, categories, left_out, fine_tune_type, strict=not skip_mismatch)
    plan = plan_warm_start(
        ours,
        source.shapes,
        left_out={**left_out, **outputs.left_out},
        outputs=outputs.positions,
        widths=outputs.widths,
    )
    _require_some(plan, source, ours)
    if not skip_mismatch:
        _require_all(plan, source)
    for variable in model.variables:
        if variable.path in plan.load:
            variable.assign(_value(variable.numpy(), source.read(variable.path), plan.load[variable.path]))
    averages = len(source.averages & plan.load.keys())
    return WarmStart(str(source.prefix), plan, averages, outputs.new_categories, outputs.coco_ids)


def _class_outputs(
    model: Detector,
    source: WeightSource,
    categories: Sequence[Category],
    left_out: Mapping[str, str],
    fine_tune_type: FineTuneType,
    *,
    strict: bool,
) -> _Outputs:
    here = {path: kinds for path, kinds in model.output_classes(model.num_classes).items() if path not in left_out}
    if not here:
        return _Outputs({}, {}, {}, ())
    everyone = tuple(str(category["name"]) for category in categories)
    full = fine_tune_type == "full"
    theirs = source.categories or _coco_classes_of(source, model, here)
    if theirs is None:
        if full:
            return _Outputs({}, {}, {}, ())
        return _Outputs(dict.fromkeys(here, f"{_rule(fine_tune_type)}: no categories are told"), {}, {}, everyone)
    same = same_categories(categories, theirs)
    if full and _differ(same, theirs):
        if source.categories is None and len(theirs) == len(categories):
            return _Outputs({}, {}, {}, ())  # so many of its own categories
        if strict:
            raise _different_categories(source, theirs, categories, same)
    if (same < 0).all():
        return _Outputs(dict.fromkeys(here, f"{_rule(fine_tune_type)}: no category in common"), {}, {}, everyone)
    there = model.output_classes(len(theirs))
    return _Outputs(
        left_out={},
        positions={path: source_outputs(kinds, there[path], same) for path, kinds in here.items()},
        widths={path: len(there[path]) for path in here},
        new_categories=tuple(name for name, place in zip(everyone, same, strict=True) if place < 0),
        coco_ids=source.categories is None,
    )


def _coco_classes_of(
    source: WeightSource, model: Detector, here: Mapping[str, np.ndarray]
) -> Sequence[Category] | None:
    """COCO's ids, if the source has class outputs for just so many; else None."""
    for count in COCO_CLASS_COUNTS:
        there = model.output_classes(count)
        if all(source.shapes.get(path, (0,))[-1] == len(there[path]) for path in here):
            return coco_classes(count)
    return None


def _differ(same: np.ndarray, theirs: Sequence[Category]) -> bool:
    return bool((same < 0).any()) or bool(_unmatched(same, theirs))


def _unmatched(same: np.ndarray, theirs: Sequence[Category]) -> list[str]:
    """Names of their categories that are not ours."""
    matched = set(same.tolist())
    return [
        str(category["name"])
        for place, category in enumerate(theirs)
        if place not in matched and category["name"] is not None
    ]


def _different_categories(
    source: WeightSource, theirs: Sequence[Category], ours: Sequence[Category], same: np.ndarray
) -> DataError:
    here = [str(category["name"]) for category, place in zip(ours, same, strict=True) if place < 0]
    there = _unmatched(same, theirs)
    return DataError(
        f"{source.prefix}: train.init.fine_tune_type=full needs the same categories; "
        f"only here: {_some(here)}; only there: {_some(there)}. "
        "Set train.init.fine_tune_type=detection, which takes over what both have."
    )


def _require_some(plan: Plan, source: WeightSource, ours: Mapping[str, object]) -> None:
    if plan.load:
        return
    raise DataError(
        f"{source.prefix}: nothing of it would be loaded: of {len(ours)} variables {len(plan.skipped)} are skipped, "
        f"{len(plan.mismatched)} have another shape there and {len(plan.missing)} are not there. Ours are named like "
        f"{min(ours)}, its own like {min(source.shapes, default='nothing')}. "
        "Check train.init.checkpoint, rename and skip."
    )


def _require_all(plan: Plan, source: WeightSource) -> None:
    way_out = "leave them out with train.init.skip, or set train.init.skip_mismatch=true"
    if plan.mismatched:
        path, (here, there) = next(iter(plan.mismatched.items()))
        raise DataError(
            f"{source.prefix}: {len(plan.mismatched)} variable(s) have another shape, first {path}: "
            f"{list(here)} is needed, {list(there)} is there. Train the same detector, {way_out}."
        )
    if plan.missing:
        raise DataError(
            f"{source.prefix}: {len(plan.missing)} variable(s) are not there, first {plan.missing[0]}; "
            f"not used are {_some(plan.unused)}. Match the names with train.init.rename, {way_out}."
        )


def _value(fresh: np.ndarray, theirs: np.ndarray, positions: np.ndarray | None) -> np.ndarray:
    """`theirs`, or of its last axis the places `positions`, and `fresh` where there is none."""
    if positions is None:
        return theirs
    taken: np.ndarray = np.where(positions >= 0, theirs[..., positions], fresh)
    return taken


def _rule(fine_tune_type: FineTuneType) -> str:
    return f"fine_tune_type={fine_tune_type}"


def _some(names: Sequence[str]) -> str:
    return (", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")) or "none"
