"""All detectors by name.  A new one: its file, its config class, one line here."""

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from detection.models.detector import Detector, Postprocess
from detection.models.efficientdet.config import EFFICIENTDETS
from detection.models.efficientdet.model import EfficientDet
from schemas.config.config import ModelConfig
from schemas.config.section import Section
from schemas.errors import ConfigError


class _Family(NamedTuple):
    """Presets by name, and the class that takes one as `config`."""

    presets: Mapping[str, Any]
    detector: Callable[..., Detector]


_POLICIES = {"bfloat16": "mixed_bfloat16"}
_FAMILIES = (_Family(EFFICIENTDETS, EfficientDet),)


def detector_names() -> tuple[str, ...]:
    """Names that `build_detector` accepts."""
    return tuple(name for family in _FAMILIES for name in family.presets)


def smallest_detectors() -> tuple[str, ...]:
    """Of each family the name with the smallest input: what stands for it where every detector is tried."""
    return tuple(
        min(family.presets, key=lambda name: math.prod(family.presets[name].image_size)) for family in _FAMILIES
    )


def build_detector(
    name: str,
    *,
    num_classes: int,
    image_size: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    score_threshold: float = 0.001,
    iou_threshold: float = 0.5,
    max_detections: int = 100,
    pre_nms_top_k: int = 1000,
    dtype: Any = None,
) -> Detector:
    """Builds a detector, variables included.

    Args:
        name: one of `detector_names()`.
        num_classes: classes are 0..num_classes-1.
        image_size: side of the square input in pixels; None: the preset's.
        overrides: fields of the detector's config class.
        score_threshold: detections have a score above this.
        iou_threshold: of non-maximum suppression.
        max_detections: detections an image.
        pre_nms_top_k: best (anchor, class) pairs that enter suppression.
        dtype: Keras dtype policy of all layers; None: the global one.

    Raises:
        ConfigError: unknown name or override (the nearest is named), or a value that
            does not fit.
    """
    family, config = _find(name, image_size=image_size, overrides=overrides)
    return family.detector(
        config=config,
        num_classes=num_classes,
        postprocess=Postprocess(score_threshold, iou_threshold, max_detections, pre_nms_top_k),
        name=name,
        dtype=dtype,
    )


def detector_from_config(model: ModelConfig, *, num_classes: int, precision: str = "float32") -> Detector:
    """Builds the detector that `model` describes, variables included.

    Raises:
        ConfigError: unknown name or override.
    """
    return build_detector(
        model.name,
        num_classes=num_classes,
        image_size=model.image_size,
        overrides=model.overrides,
        dtype=dtype_policy(precision),
        **model.postprocess.model_dump(),
    )


def dtype_policy(precision: str) -> str:
    """Keras' name for `train.precision`; variables are float32 under all of them."""
    return _POLICIES.get(precision, precision)


def detector_config(name: str, *, image_size: int | None = None, overrides: Mapping[str, Any] | None = None) -> Section:
    """The preset `name` with its overrides: what `build_detector` builds, without building it.

    Raises:
        ConfigError: see `build_detector`.
    """
    return _find(name, image_size=image_size, overrides=overrides)[1]


def _find(name: str, *, image_size: int | None, overrides: Mapping[str, Any] | None) -> tuple[_Family, Section]:
    family = next((family for family in _FAMILIES if name in family.presets), None)
    if family is None:
        raise ConfigError(
            f"model.name = {name!r}: no such detector. The nearest is {_nearest(name, detector_names())}."
        )
    changes = dict(overrides or {})
    if image_size is not None:
        changes["image_size"] = (image_size, image_size)
    return family, _override(family.presets[name], changes)


def _override(preset: Section, changes: Mapping[str, Any]) -> Section:
    known = tuple(type(preset).model_fields)
    for field in changes:
        if field not in known:
            raise ConfigError(f"model.overrides.{field}: no such field. The nearest is {_nearest(field, known)}.")
    try:
        return type(preset).model_validate(preset.model_dump() | dict(changes))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item) for item in error.errors())) from None


def _explain(item: Any) -> str:
    field = ".".join(str(part) for part in item["loc"])
    return f"model.overrides.{field} = {item['input']!r}: {item['msg']}."


def _nearest(name: str, known: tuple[str, ...]) -> str:
    return difflib.get_close_matches(name, known, 1, 0.0)[0]
