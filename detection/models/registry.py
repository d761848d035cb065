"""Registry of detectors by name.  A new family adds a folder with a config class, and a line here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from detection.models.centernet.config import CENTERNETS
from detection.models.centernet.model import CenterNet
from detection.models.detector import Detector
from detection.models.dfine.config import DFINES
from detection.models.dfine.model import DFine
from detection.models.efficientdet.config import EFFICIENTDETS
from detection.models.efficientdet.model import EfficientDet
from detection.models.faster_rcnn.config import FASTER_RCNNS
from detection.models.faster_rcnn.model import FasterRcnn
from detection.models.retinanet.config import RETINANETS
from detection.models.retinanet.model import RetinaNet
from detection.models.ssd.config import SSDS
from detection.models.ssd.model import Ssd
from detection.types import Resizing
from schemas.config.config import ModelConfig
from schemas.config.config_io import key_of, nearest_key
from schemas.config.input_size import ResizeConfig, height_and_width
from schemas.detectors import nearest_or_all
from schemas.errors import ConfigError


class Family(NamedTuple):
    """Presets by name, and the class that takes a preset as `config`."""

    presets: Mapping[str, Any]
    detector: Callable[..., Detector]

    @property
    def config_class(self) -> type[Any]:
        """Class of the presets."""
        return type(next(iter(self.presets.values())))


_POSTPROCESS = "postprocess"  # field of every family's config class: a subsection, set by `model.postprocess`
_POLICIES = {"bfloat16": "mixed_bfloat16"}
FAMILIES = (
    Family(EFFICIENTDETS, EfficientDet),
    Family(RETINANETS, RetinaNet),
    Family(SSDS, Ssd),
    Family(FASTER_RCNNS, FasterRcnn),
    Family(CENTERNETS, CenterNet),
    Family(DFINES, DFine),
)


def detector_names() -> tuple[str, ...]:
    """Returns the names that `build_detector` accepts."""
    return tuple(name for family in FAMILIES for name in family.presets)


def build_detector(
    name: str,
    *,
    num_classes: int,
    keypoints: Sequence[Sequence[str]] = (),
    dtype: Any = None,
    resize: ResizeConfig | None = None,
    **fields: Any,
) -> Detector:
    """Builds a detector, variables included.

    Args:
        name: one of `detector_names()`.
        num_classes: number of classes, which are 0..num_classes-1.
        keypoints: names of each class's keypoints, for a detector with keypoints.
        dtype: Keras dtype policy of all layers; None: the global one.
        resize: how images are scaled into the input; None: resize to fit.
        fields: the other arguments of `detector_config`.

    Raises:
        ConfigError: see `detector_config`; or no class has keypoints, and the detector needs them.
    """
    resize = resize or ResizeConfig()
    config = detector_config(name, resize=resize, padded=False, **fields)
    arguments: dict[str, Any] = {"num_classes": num_classes, "name": name, "dtype": dtype}
    if getattr(config, "keypoints", False):
        if not any(keypoints):
            raise ConfigError(
                f"model.name = {name} learns keypoints, but no category has keypoints. Train on a data set whose "
                "categories name their keypoints, or choose another detector."
            )
        arguments["keypoints"] = keypoints
    detector = _family(name).detector(config=_padded(config, resize), **arguments)
    size = config.image_size
    detector.resizing = Resizing(size, resize.mode, resize.short_side, resize.long_side, resize.half_pixel_centers)
    return detector


def detector_from_config(
    model: ModelConfig, categories: Sequence[Mapping[str, Any]], *, precision: str = "float32"
) -> Detector:
    """Builds the detector of a configuration for categories, which may name keypoints, with its variables.

    Raises:
        ConfigError: unknown name or override; or no class has keypoints, and the detector needs them.
    """
    return build_detector(
        model.name,
        num_classes=len(categories),
        keypoints=[category.get("keypoints") or () for category in categories],
        dtype=dtype_policy(precision),
        **{field: getattr(model, field) for field in ("image_size", "resize", "overrides", "postprocess")},
    )


def dtype_policy(precision: str) -> str:
    """Returns the Keras dtype policy of `train.precision`; variables are always float32."""
    return _POLICIES.get(precision, precision)


def detector_config(
    name: str,
    *,
    image_size: int | tuple[int, int] | str | None = None,
    resize: ResizeConfig | None = None,
    overrides: Mapping[str, Any] | None = None,
    postprocess: Mapping[str, Any] | None = None,
    padded: bool = True,
) -> Any:
    """Returns the configuration of a detector.

    Args:
        name: one of `detector_names()`.
        image_size: side of the square input, or (height, width), in pixels; None, and `auto` before the data are
            known: the size of the preset, or of `resize`.
        resize: how images are scaled into the input; None: resize to fit.
        overrides: changed fields of the detector's config class, a tree of its sections.
        postprocess: changed fields of its section `postprocess`.
        padded: the size is rounded up to `resize.pad_to_multiple`, as the input is; False: images are scaled into it.

    Raises:
        ConfigError: unknown name or field (the message names the nearest), or an invalid value.
    """
    resize = resize or ResizeConfig()
    changes = dict(overrides or {})
    image_size = None if isinstance(image_size, str) else image_size
    if image_size is None and resize.mode == "short_side" and "image_size" not in changes:
        image_size = resize.long_side
    if image_size is not None:
        changes["image_size"] = height_and_width(image_size)
    if _POSTPROCESS in changes:
        raise ConfigError(f"model.overrides.{_POSTPROCESS}: set its fields in the section model.{_POSTPROCESS}.")
    config = _override(_family(name).presets[name], changes, section="model.overrides")
    try:
        resize.require_fit(config.image_size)
    except ValueError as error:
        raise ConfigError(f"model.{error}.") from None
    options = _override(config.postprocess, postprocess or {}, section="model.postprocess")
    config = _override(config, {_POSTPROCESS: options}, section="model")
    return _padded(config, resize) if padded else config


def _padded(config: Any, resize: ResizeConfig) -> Any:
    sides = (-(-side // resize.pad_to_multiple) * resize.pad_to_multiple for side in config.image_size)
    return config.model_copy(update={"image_size": tuple(sides)})


def _family(name: str) -> Family:
    family = next((family for family in FAMILIES if name in family.presets), None)
    if family is None:
        raise ConfigError(f"model.name = {name!r}: no such detector. {nearest_or_all(name, detector_names())}")
    return family


def _override(preset: Any, changes: Mapping[str, Any], *, section: str) -> Any:
    try:
        return preset.changed(changes)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item, type(preset), section) for item in error.errors())) from None


def _explain(item: Any, preset: type[Any], section: str) -> str:
    key = key_of(item)
    place = f"{section}.{key}".rstrip(".")
    if item["type"] == "value_error":  # fields that contradict each other
        return f"{place}: {item['ctx']['error']}."
    if item["type"] == "extra_forbidden":
        return f"{place}: no such field. The nearest is {nearest_key(key, preset)}."
    if item["type"] == "model_type":
        return f"{place} = {item['input']!r}: a section. Set one of its fields."
    return f"{place} = {item['input']!r}: {item['msg']}."
