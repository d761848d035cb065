"""Sets the initial weights of a run: pretrained backbone weights, a warm start, or both."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detection.interop.initial_weights import ImportedWeights, import_initial_weights
from detection.models.detector import Detector
from detection.pretrained.detectors import read_origin
from detection.pretrained.imagenet import ImagenetReport, load_imagenet_weights
from detection.training.engine.state import TrainState
from detection.training.initialization.class_outputs import Category
from detection.training.initialization.warm_start import Source, WarmStart, warm_start
from detection.weights.publications import IMAGENET, IMAGENET_BACKBONES, require_licence
from detection.weights.weight_source import WeightSource
from schemas.config.config import Config
from schemas.config.section import PatternMatch
from schemas.config.train.initialization import FineTuneType, SourceWeights

_LOGGER = logging.getLogger("cocoflow.trainer")


class InitReport(NamedTuple):
    """Report of an initialization.

    backbone: ImageNet weights of the backbone.
    warm_start: weights from an earlier training.
    fresh: paths of the variables that keep random values from the seed.
    published: name, origin and licence of published weights; None: the user's own weights.
    imported: weights of another program; None: the warm start has none.
    """

    backbone: ImagenetReport | None
    warm_start: WarmStart | None
    fresh: tuple[str, ...]
    published: Mapping[str, Any] | None = None
    imported: ImportedWeights | None = None

    def __str__(self) -> str:
        parts = [str(self.backbone)] if self.backbone else []
        if self.warm_start:
            parts.append(_warm_start_text(self.warm_start))
        return "; ".join([*parts, f"{len(self.fresh)} variables fresh"])

    def as_json(self) -> dict[str, Any]:
        """Returns the content of `schemas.artifacts.INIT_REPORT_JSON`."""
        report: dict[str, Any] = {"published": self.published} if self.published else {}
        if self.backbone:
            report["backbone_weights"] = self.backbone._asdict()
        if self.warm_start:
            report["warm_start"] = _warm_start_lists(self.warm_start)
        return report | {"fresh": self.fresh}


def initialize(
    state: TrainState,
    *,
    config: Config,
    categories: Sequence[Category],
    backbone_weights: str | None,
    checkpoint: str | None,
    base_model: str | Path | None,
    weights: SourceWeights,
    rename: Sequence[tuple[str, str]],
    fine_tune_type: FineTuneType,
    skip: Sequence[str],
    skip_mismatch: bool,
    match: PatternMatch = "start",
    fetches: bool = True,
) -> InitReport | None:
    """Sets the initial weights of a new run, and its EMA weights; step and optimizer do not change.

    A base model replaces the checkpoint.  Backbone weights are loaded only if the base model or
    checkpoint does not set the complete backbone.

    Args:
        state: state of a new run.
        config: its configuration, to import another program's checkpoint.
        categories: the data set's COCO categories, in the order of the model's classes.
        backbone_weights: `imagenet`, or a file of ImageNet weights; None: no backbone weights.
        checkpoint: checkpoint, training output or SavedModel to start from; None: no checkpoint.
        base_model: SavedModel of the previous model; None: no previous model.
        weights: weights of the checkpoint to read, EMA or raw.
        rename: (regular expression, replacement) pairs for the checkpoint's variable names.
        fine_tune_type: variables to load, as in `warm_start`; of another program's backbone alone, it is the backbone.
        skip: regular expressions of variables not to load.
        skip_mismatch: skip variables that are missing in the checkpoint or have another shape.
        match: whether `skip` matches at the start of a path or anywhere in it.
        fetches: published weights may be downloaded.

    Returns:
        The report; None: no initial weights were configured.

    Raises:
            ConfigError: an expression matches nothing, no weights fit the backbone, or their licence is not accepted.
            DataError: the weights cannot be read or do not fit the model.
    """
    source = _source(state.model, config, base_model=base_model, checkpoint=checkpoint, weights=weights, rename=rename)
    backbone = started = None
    imported = source if isinstance(source, ImportedWeights) else None
    if imported is not None and imported.only_backbone:
        fine_tune_type = "classification"
    if backbone_weights is not None and (source is None or skip or skip_mismatch):
        backbone = load_imagenet_weights(state.model, backbone_weights, fetches=fetches)
    if source is not None:
        started = warm_start(
            state.model,
            source,
            categories=categories,
            fine_tune_type=fine_tune_type,
            skip=skip,
            skip_mismatch=skip_mismatch,
            match=match,
        )
    if backbone is None and started is None:
        return None
    if state.ema is not None:
        state.ema.restart()
    fresh = _fresh_paths(state.model, backbone, started)
    published = _published(backbone, started)
    if published is not None:
        require_licence(published, config.model.weights_licences)
    report = InitReport(backbone, started, fresh, published, imported)
    _LOGGER.info("%s", report)
    return report


def _fresh_paths(model: Detector, backbone: ImagenetReport | None, started: WarmStart | None) -> tuple[str, ...]:
    """Returns the paths of the variables that were not loaded."""
    loaded = {*(backbone.loaded if backbone else ()), *(started.plan.load if started else ())}
    return tuple(variable.path for variable in model.variables if variable.path not in loaded)


def _published(backbone: ImagenetReport | None, started: WarmStart | None) -> Mapping[str, Any] | None:
    """Returns the origin of published weights; weights of the complete detector come first."""
    if started is not None:
        return read_origin(started.source)
    if backbone is None or backbone.source != IMAGENET:
        return None
    return IMAGENET_BACKBONES[backbone.backbone].as_json() | {"file": backbone.file}


def _source(
    model: Detector,
    config: Config,
    *,
    base_model: str | Path | None,
    checkpoint: str | None,
    weights: SourceWeights,
    rename: Sequence[tuple[str, str]],
) -> Source | None:
    if base_model is not None:
        return WeightSource(base_model)
    if checkpoint is None:
        return None
    source = WeightSource(checkpoint, weights=weights, rename=rename)
    has_our_names = all(variable.path in source.shapes for variable in model.backbone_variables)
    if source.is_ours or rename or has_our_names:
        return source
    return import_initial_weights(checkpoint, config, weights) or source


def _warm_start_text(report: WarmStart) -> str:
    plan = report.plan
    counts = {
        "partly": sum(_is_partial(positions) for positions in plan.load.values()),
        "skipped": len(plan.skipped),
        "with another shape": len(plan.mismatched),
        "missing in the source": len(plan.missing),
        "unused in the source": len(plan.unused),
    }
    others = "".join(f", {count} {what}" for what, count in counts.items() if count)
    ema = f" ({report.ema} EMA weights)" if report.ema else ""
    assumed = "; class outputs assumed to be COCO's ids" if report.coco_ids else ""
    fresh = f"; fresh class outputs for {', '.join(report.new_categories)}" if report.new_categories else ""
    return f"warm start from {report.source}: {len(plan.load)} variables loaded{ema}{others}{assumed}{fresh}"


def _warm_start_lists(report: WarmStart) -> dict[str, Any]:
    plan = report.plan
    return {
        "source": report.source,
        "averages": report.ema,
        "class_outputs_taken_for_coco_ids": report.coco_ids,
        "loaded": [path for path, positions in plan.load.items() if not _is_partial(positions)],
        "loaded_in_part": [path for path, positions in plan.load.items() if _is_partial(positions)],
        "new_categories": report.new_categories,
        "skipped": plan.skipped,
        "mismatched": {path: {"needed": here, "there": there} for path, (here, there) in plan.mismatched.items()},
        "not_there": plan.missing,
        "unused_there": plan.unused,
    }


def _is_partial(positions: Any) -> bool:
    return positions is not None and bool((positions < 0).any())
