"""Warm start: initializes a model with the weights of an earlier training."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from detection.datasets.annotations.coco_categories import COCO_CLASS_COUNTS, coco_classes
from detection.interop.initial_weights import ImportedWeights
from detection.models.detector import Detector
from detection.training.engine.variable_selection import matching_paths
from detection.training.initialization.class_outputs import Category, same_categories, source_outputs
from detection.weights.weight_source import WeightSource
from schemas.config.section import PatternMatch
from schemas.config.train.initialization import FineTuneType
from schemas.errors import DataError
from schemas.quoting import first_of

Shape = tuple[int, ...]
Source = WeightSource | ImportedWeights


class Plan(NamedTuple):
    """The variables to read in a warm start.

    Each variable of the model is in one of `load`, `skipped`, `mismatched` and `missing`.

    load: path -> None, or, if the last axis has class outputs, the position of each output in
        the source, int64; -1: the output keeps its value.
    skipped: path -> rule that excludes the variable.
    mismatched: path -> shapes in the model and in the source.
    missing: paths that are missing in the source.
    unused: names in the source that are not read.
    """

    load: dict[str, np.ndarray | None]
    skipped: dict[str, str]
    mismatched: dict[str, tuple[Shape, Shape]]
    missing: tuple[str, ...]
    unused: tuple[str, ...]


class WarmStart(NamedTuple):
    """Report of a warm start.

    source: the loaded checkpoint.
    plan: treatment of each variable.
    ema: number of variables loaded from EMA weights.
    new_categories: names of the categories with random class outputs.
    coco_ids: the source has no categories, and its class outputs are assumed to be COCO's ids.
    """

    source: str
    plan: Plan
    ema: int
    new_categories: tuple[str, ...]
    coco_ids: bool = False


class _Outputs(NamedTuple):
    """Variables with class outputs: those to skip, and the positions of the other variables' outputs in the source."""

    left_out: Mapping[str, str]
    positions: Mapping[str, np.ndarray]
    widths: Mapping[str, int]
    new_categories: tuple[str, ...]
    coco_ids: bool = False


def warm_start(
    model: Detector,
    source: Source,
    *,
    categories: Sequence[Category],
    fine_tune_type: FineTuneType,
    skip: Sequence[str] = (),
    skip_mismatch: bool = False,
    match: PatternMatch = "start",
) -> WarmStart:
    """Sets the model's variables from `source`; other variables keep their values.

    Args:
        model: built detector.
        source: weights to read.
        categories: categories of `model`, in the order of its classes.
        fine_tune_type: as in the TF Object Detection API.  `classification`: the backbone.
            `detection`: all variables, but class outputs only for common categories.  `full`: all
            variables; the source must have the model's categories, and is assumed to if it has no
            categories.  A source without categories, but with an output for each of COCO's ids,
            like google/automl's releases, has COCO's categories.
        skip: regular expressions of the model's variables to skip.
        skip_mismatch: skip variables that are missing in the source or have another shape,
            and accept different categories.
        match: whether `skip` matches at the start of a path or anywhere in it.

    Raises:
        DataError: one of these mismatches without `skip_mismatch`; no variable would be loaded;
            or a value cannot be read or is not finite.
        ConfigError: an expression matches nothing.
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
    plan = _plan(
        ours, source.shapes, left_out={**left_out, **outputs.left_out}, outputs=outputs.positions, widths=outputs.widths
    )
    _require_some(plan, source, ours)
    if not skip_mismatch:
        _require_all(plan, source)
    for variable in model.variables:
        if variable.path in plan.load:
            variable.assign(_value(variable.numpy(), source.read(variable.path), plan.load[variable.path]))
    ema = len(source.ema_names & plan.load.keys())
    return WarmStart(str(source.prefix), plan, ema, outputs.new_categories, outputs.coco_ids)


def _plan(
    ours: Mapping[str, Shape],
    theirs: Mapping[str, Shape],
    *,
    left_out: Mapping[str, str],
    outputs: Mapping[str, np.ndarray],
    widths: Mapping[str, int],
) -> Plan:
    """Plans the treatment of every variable from names and shapes alone.

    Args:
        ours: shapes of the model's variables, by path.
        theirs: shapes in the source, by name.
        left_out: rules that exclude variables, by path.
        outputs: for variables with class outputs on the last axis, the position of each output in
            the source; -1: none (result of `source_outputs`).
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


def _class_outputs(
    model: Detector,
    source: Source,
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
        return _Outputs(dict.fromkeys(here, f"{_rule(fine_tune_type)}: the source has no categories"), {}, {}, everyone)
    same = same_categories(categories, theirs)
    if full and ((same < 0).any() or _unmatched(same, theirs)):
        if source.categories is None and len(theirs) == len(categories):
            return _Outputs({}, {}, {}, ())  # the source has another data set's categories, equally many
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


def _coco_classes_of(source: Source, model: Detector, here: Mapping[str, np.ndarray]) -> Sequence[Category] | None:
    """Returns COCO's ids as categories if the source has class outputs for exactly these ids; else None."""
    for count in COCO_CLASS_COUNTS:
        there = model.output_classes(count)
        if all(source.shapes.get(path, (0,))[-1] == len(there[path]) for path in here):
            return coco_classes(count)
    return None


def _unmatched(same: np.ndarray, theirs: Sequence[Category]) -> list[str]:
    """Lists the names of the source's categories that are not in the model."""
    matched = set(same.tolist())
    return [
        str(category["name"])
        for place, category in enumerate(theirs)
        if place not in matched and category["name"] is not None
    ]


def _different_categories(
    source: Source, theirs: Sequence[Category], ours: Sequence[Category], same: np.ndarray
) -> DataError:
    here = [str(category["name"]) for category, place in zip(ours, same, strict=True) if place < 0]
    there = _unmatched(same, theirs)
    return DataError(
        f"{source.prefix}: train.init.fine_tune_type=full requires equal categories; "
        f"only in the data set: {_some(here)}; only in the checkpoint: {_some(there)}. "
        "Set train.init.fine_tune_type=detection to load the class outputs of common categories only."
    )


def _require_some(plan: Plan, source: Source, ours: Mapping[str, object]) -> None:
    if plan.load:
        return
    raise DataError(
        f"{source.prefix}: no weights would be loaded: of {len(ours)} variables, {len(plan.skipped)} are skipped, "
        f"{len(plan.mismatched)} have another shape and {len(plan.missing)} are missing. The model's paths are like "
        f"{min(ours)}, the checkpoint's like {min(source.shapes, default='nothing')}. "
        "Check train.init.checkpoint, rename and skip."
    )


def _require_all(plan: Plan, source: Source) -> None:
    remedy = "skip them with train.init.skip, or set train.init.skip_mismatch=true"
    if plan.mismatched:
        path, (here, there) = next(iter(plan.mismatched.items()))
        raise DataError(
            f"{source.prefix}: {len(plan.mismatched)} variable(s) have another shape, the first is {path}: "
            f"{list(here)} in the model, {list(there)} in the checkpoint. Train the same detector, {remedy}."
        )
    if plan.missing:
        raise DataError(
            f"{source.prefix}: {len(plan.missing)} variable(s) are missing, the first is {plan.missing[0]}; "
            f"unused are {_some(plan.unused)}. Match the names with train.init.rename, {remedy}."
        )


def _value(fresh: np.ndarray, theirs: np.ndarray, positions: np.ndarray | None) -> np.ndarray:
    """Returns `theirs`, or the `positions` of its last axis, with `fresh` for positions below 0."""
    if positions is None:
        return theirs
    merged: np.ndarray = np.where(positions >= 0, theirs[..., positions], fresh)
    return merged


def _rule(fine_tune_type: FineTuneType) -> str:
    return f"fine_tune_type={fine_tune_type}"


def _some(names: Sequence[str]) -> str:
    return first_of(names, 5) or "none"
