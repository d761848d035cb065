"""The steps of `train.augment.steps`: the TF Object Detection API's preprocessing steps, by their names.

Fields and defaults are those of its preprocessor.proto.  Steps that would change the network's
input or the kind of its labels are in `REFUSED_STEPS`, with the reason.
"""

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    create_model,
)

from schemas.config.section import Section

Part = Annotated[float, Field(ge=0.0, le=1.0)]
PositivePart = Annotated[float, Field(gt=0.0, le=1.0)]


def _clipped(value: bool) -> bool:
    if not value:
        raise ValueError("boxes are always clipped, as the input is a window of the image; remove clip_boxes")
    return value


_Indices = tuple[NonNegativeInt, ...]
_Quality = Annotated[int, Field(ge=0, le=100)]
_Ratios = tuple[PositiveFloat, PositiveFloat]
_Value = Annotated[float, Field(ge=0.0, le=255.0)]
_JITTER_MODES = (
    *("DEFAULT", "EXPAND", "SHRINK", "EXPAND_SYMMETRIC", "SHRINK_SYMMETRIC"),
    *("EXPAND_SYMMETRIC_XY", "SHRINK_SYMMETRIC_XY"),
)

# Type and description of each field; a field means the same in all steps.
_FIELDS: Mapping[str, tuple[Any, str]] = {
    "aspect_ratio": (PositiveFloat, "width / height of the result"),
    "clip_boxes": (Annotated[bool, AfterValidator(_clipped)], "clip boxes to the window; only true"),
    "color_ordering": (Literal[0, 1], "0: brightness, saturation, hue, contrast; 1: contrast is second"),
    "concat_horizontal_probability": (Part, "probability of a copy to the right"),
    "concat_vertical_probability": (Part, "probability of a copy below"),
    "drop_probability": (Part, "probability per object"),
    "gain": (PositiveFloat, "factor"),
    "gamma": (PositiveFloat, "exponent"),
    "jitter_mode": (Literal[_JITTER_MODES], "SYMMETRIC: opposite sides move equally; XY: all four sides do"),
    "keypoint_flip_permutation": (_Indices, "keypoint that becomes each keypoint; empty: left and right by name"),
    "keypoint_rot_permutation": (_Indices, "keypoint that becomes each keypoint; empty: itself"),
    "label": (int, "category id of the data set"),
    "max_area": (PositivePart, "max area of the window, as a fraction of the image"),
    "max_aspect_ratio": (PositiveFloat, "max width / height of the window"),
    "max_black_patches": (NonNegativeInt, "number of squares to draw"),
    "max_border": (PositiveInt, "min distance of the centre to the border, pixels; halved as needed"),
    "max_delta": (NonNegativeFloat, "max factor; hue, brightness: max change, as a fraction of the circle or of 255"),
    "max_gaussian_stddev": (NonNegativeFloat, "max standard deviation, as a fraction of 255"),
    "max_height_padding": (NonNegativeInt, "max rows to add"),
    "max_image_height": (PositiveInt | None, "max height, pixels; none: twice the image's"),
    "max_image_width": (PositiveInt | None, "max width, pixels; none: twice the image's"),
    "max_jpeg_quality": (_Quality, "max quality"),
    "max_padded_size_ratio": (_Ratios, "max height and width, as fractions of those without padding"),
    "max_patch_size": (PositiveInt, "max side, pixels"),
    "max_scale_ratio": (PositiveFloat, "max factor"),
    "max_target_pixels": (PositiveInt, "max pixels"),
    "max_width_padding": (NonNegativeInt, "max columns to add"),
    "maxval": (NonNegativeFloat, "max factor"),
    "method": (Literal["AREA", "BICUBIC", "BILINEAR", "NEAREST_NEIGHBOR"], "kernel"),
    "min_area": (PositivePart, "min area of the window, as a fraction of the image"),
    "min_aspect_ratio": (PositiveFloat, "min width / height of the window"),
    "min_delta": (NonNegativeFloat, "min factor"),
    "min_gaussian_stddev": (NonNegativeFloat, "min standard deviation, as a fraction of 255"),
    "min_image_height": (PositiveInt | None, "min height, pixels; none: the image's"),
    "min_image_width": (PositiveInt | None, "min width, pixels; none: the image's"),
    "min_jpeg_quality": (_Quality, "min quality"),
    "min_object_covered": (Part, "min fraction of at least one object that the window covers"),
    "min_padded_size_ratio": (_Ratios, "min height and width, as fractions of those without padding"),
    "min_patch_size": (PositiveInt, "min side, pixels"),
    "min_scale_ratio": (PositiveFloat, "min factor"),
    "min_target_pixels": (PositiveInt, "min pixels"),
    "minval": (NonNegativeFloat, "min factor"),
    "new_height": (PositiveInt, "height, pixels"),
    "new_label": (int, "category id of the data set"),
    "new_width": (PositiveInt, "width, pixels"),
    "num_scales": (PositiveInt, "number of evenly spaced scales to draw from"),
    "original_labels": (tuple[int, ...], "category ids of the data set to replace"),
    "output_size": (PositiveInt, "side of the result, pixels"),
    "overlap_thresh": (Part, "min fraction of an object in the window; others are dropped"),
    "pad_color": (tuple[()] | tuple[_Value, _Value, _Value], "RGB; empty: the image's mean"),
    "pad_color_b": (_Value | None, "blue of the padding"),
    "pad_color_g": (_Value | None, "green of the padding"),
    "pad_color_r": (_Value | None, "red of the padding; no colour: the image's mean"),
    "policy_name": (Literal["v0", "v1", "v2", "v3", "test"], "name of the policy"),
    "probability": (Part, "probability per image, or per black patch"),
    "random_coef": (Part, "probability of the unchanged image"),
    "ratio": (Part, "range of the movement, as a fraction of the box"),
    "scale_max": (PositiveFloat, "max scale"),
    "scale_min": (PositiveFloat, "min scale"),
    "size_to_image_ratio": (Part, "side of the square / the image's short side"),
    "target_height": (PositiveInt, "height, pixels"),
    "target_width": (PositiveInt, "width, pixels"),
}


class Step(Section):
    """A step; for each pair of fields that differ by `min` and `max`, the min is at most the max."""

    def _check_keys(self) -> None:
        for low in (name for name in type(self).model_fields if "min" in name):
            high = low.replace("min", "max")
            lows, highs = getattr(self, low), getattr(self, high, None)
            pairs = zip(lows, highs or (), strict=False) if isinstance(lows, tuple) else [(lows, highs)]
            if any(least is not None and most is not None and least > most for least, most in pairs):
                raise ValueError(f"{low} = {lows} is above {high} = {highs}")


def _step(effect: str, *, operations: type[Step] | None = None, **defaults: Any) -> type[Step]:
    """Builds a step; `...` is the default of a field that must be given."""
    fields = {key: (_FIELDS[key][0], Field(value, description=_FIELDS[key][1])) for key, value in defaults.items()}
    if operations is not None:
        listed = tuple[operations, ...]  # type: ignore[valid-type]
        fields = {"operations": (listed, Field((), description="operations to draw from; empty: SSD's")), **fields}
    return create_model("Step", __base__=Step, __doc__=effect, **fields)  # type: ignore[call-overload]


_OVERLAP: dict[str, Any] = {"overlap_thresh": 0.3, "clip_boxes": True}
_ASPECT: dict[str, Any] = {"min_aspect_ratio": 0.75, "max_aspect_ratio": 1.33}
_CROP: dict[str, Any] = {
    "min_object_covered": 1.0,
    **_ASPECT,
    "min_area": 0.1,
    "max_area": 1.0,
    **_OVERLAP,
    "random_coef": 0.0,
}
_PADDED: dict[str, Any] = {"min_padded_size_ratio": (1.0, 1.0), "max_padded_size_ratio": (2.0, 2.0)}
# In the proto, absent fields of an operation are 0, which is no aspect ratio and no area.
_GIVEN: dict[str, Any] = dict.fromkeys(("min_aspect_ratio", "max_aspect_ratio", "min_area", "max_area"), ...)
_OPERATION: dict[str, Any] = {**_CROP, "min_object_covered": 0.0, "overlap_thresh": 0.0, **_GIVEN}
_COLORS: dict[str, Any] = dict.fromkeys(("pad_color_r", "pad_color_g", "pad_color_b"))
_SSD = _step("An operation of a crop.", **_OPERATION)
_SSD_PAD = _step("An operation of a crop with padding.", **_OPERATION, **_PADDED, **_COLORS)
_SSD_FIXED = _step(
    "An operation without aspect ratio.", **{key: value for key, value in _OPERATION.items() if key not in _ASPECT}
)

STEPS: dict[str, type[Step]] = {
    "random_horizontal_flip": _step("Mirrors left and right.", keypoint_flip_permutation=(), probability=0.5),
    "random_pixel_value_scale": _step("Multiplies each value by a factor of its own.", minval=0.9, maxval=1.1),
    "random_image_scale": _step("Resizes by a random factor.", min_scale_ratio=0.5, max_scale_ratio=2.0),
    "random_rgb_to_gray": _step("Removes the colours; the image keeps three channels.", probability=0.1),
    "random_adjust_brightness": _step("Adds a random value to all pixels.", max_delta=0.2),
    "random_adjust_contrast": _step("Multiplies the distances to the mean.", min_delta=0.8, max_delta=1.25),
    "random_adjust_hue": _step("Rotates the hue.", max_delta=0.02),
    "random_adjust_saturation": _step("Multiplies the saturation.", min_delta=0.8, max_delta=1.25),
    "random_distort_color": _step(
        "Changes brightness by up to 32, hue by up to 0.2, saturation and contrast by factors of 0.5 to 1.5.",
        color_ordering=0,
    ),
    "random_jitter_boxes": _step(
        "Moves the sides of each box by up to half of `ratio` times its height or width.",
        ratio=0.05,
        jitter_mode="DEFAULT",
    ),
    "random_crop_image": _step("Crops a window that covers an object; not, if 100 attempts fail.", **_CROP),
    "random_pad_image": _step(
        "Pads to a random size, with the image at a random place.",
        **dict.fromkeys(("min_image_height", "min_image_width", "max_image_height", "max_image_width")),
        pad_color=(),
    ),
    "random_crop_pad_image": _step(
        "Crops as random_crop_image, and pads; sizes are relative to the original.", **_CROP, **_PADDED, pad_color=()
    ),
    "random_crop_to_aspect_ratio": _step("Crops the largest window, at a random place.", aspect_ratio=1.0, **_OVERLAP),
    "random_black_patches": _step(
        "Blackens random squares.", max_black_patches=10, probability=0.5, size_to_image_ratio=0.1
    ),
    "random_resize_method": _step("Resizes with one of four kernels.", target_height=..., target_width=...),
    "resize_image": _step("Resizes.", new_height=..., new_width=..., method="BILINEAR"),
    "ssd_random_crop": _step("Crops by one of several operations.", operations=_SSD),
    "ssd_random_crop_pad": _step("Crops and pads by one of several operations.", operations=_SSD_PAD),
    "ssd_random_crop_fixed_aspect_ratio": _step(
        "Crops by one of several operations, to an aspect ratio.", operations=_SSD_FIXED, aspect_ratio=1.0
    ),
    "ssd_random_crop_pad_fixed_aspect_ratio": _step(
        "Crops by one of several operations, and pads below and to the right to an aspect ratio.",
        operations=_SSD,
        aspect_ratio=1.0,
        **_PADDED,
    ),
    "random_vertical_flip": _step("Mirrors top and bottom.", keypoint_flip_permutation=(), probability=0.5),
    "random_rotation90": _step("Rotates anticlockwise.", keypoint_rot_permutation=(), probability=0.5),
    "random_absolute_pad_image": _step(
        "Adds rows and columns around the image.", max_height_padding=..., max_width_padding=..., pad_color=()
    ),
    "random_self_concat_image": _step(
        "Repeats image and objects.", concat_vertical_probability=0.1, concat_horizontal_probability=0.1
    ),
    "autoaugment_image": _step("Applies a policy of AutoAugment.", policy_name="v0"),
    "drop_label_probabilistically": _step(
        "Drops objects of a category; their pixels stay, as background.", label=..., drop_probability=1.0
    ),
    "remap_labels": _step("Changes the category of objects.", original_labels=..., new_label=...),
    "random_jpeg_quality": _step("Compresses as JPEG.", random_coef=0.0, min_jpeg_quality=0, max_jpeg_quality=100),
    "random_downscale_to_target_pixels": _step(
        "Shrinks larger images.", random_coef=0.0, min_target_pixels=300000, max_target_pixels=500000
    ),
    "random_patch_gaussian": _step(
        "Adds Gaussian noise to a random square.",
        random_coef=0.0,
        min_patch_size=1,
        max_patch_size=250,
        min_gaussian_stddev=0.0,
        max_gaussian_stddev=1.0,
    ),
    "random_square_crop_by_scale": _step(
        "Crops a square, scale x the long side, about a random centre; black where it leaves the image.",
        max_border=128,
        scale_min=0.6,
        scale_max=1.3,
        num_scales=8,
    ),
    "random_scale_crop_and_pad_to_square": _step(
        "Scales the long side to scale x output_size, crops a random window, pads with black below and to the right.",
        output_size=512,
        scale_min=0.1,
        scale_max=2.0,
    ),
    "adjust_gamma": _step("Computes gain * value^gamma, with values as fractions of 255.", gamma=1.0, gain=1.0),
}

_NORMALIZED = "the detector normalizes its input. Set model.overrides.pixel_mean and pixel_std, and remove the step"
REFUSED_STEPS = {
    "normalize_image": _NORMALIZED,
    "subtract_channel_mean": _NORMALIZED,
    "rgb_to_gray": "networks take three channels. Use random_rgb_to_gray with probability: 1",
    "scale_boxes_to_pixel_coordinates": "the input pipeline converts boxes to pixels itself. Remove the step",
    "convert_class_logits_to_softmax": "objects have one category each, not scores of several. Remove the step",
}


def _parse_step(value: Any) -> Any:
    """Completes a step, a name or {name: fields}, by its defaults."""
    entry = {value: {}} if isinstance(value, str) else value
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError("a step is a name or {name: {field: value}}; begin each step with its own '-'")
    ((name, fields),) = entry.items()
    if name in REFUSED_STEPS:
        raise ValueError(f"{name}: {REFUSED_STEPS[name]}")
    if name not in STEPS:
        nearest = difflib.get_close_matches(str(name), [*STEPS, *REFUSED_STEPS], 1, 0.0)[0]
        raise ValueError(f"unknown step {name}. The nearest is {nearest}")
    try:
        section = STEPS[name].model_validate(fields or {})
    except ValidationError as error:
        raise ValueError("; ".join(_explain(name, item) for item in error.errors())) from None
    return {name: section.model_dump(mode="json")}


def _explain(step: str, item: Any) -> str:
    where = ".".join([step, *(str(part) for part in item["loc"])])
    if item["type"] == "extra_forbidden":
        known = list(STEPS[step].model_fields)
        if "operations" in item["loc"]:
            known = list(get_args(STEPS[step].model_fields["operations"].annotation)[0].model_fields)
        nearest = difflib.get_close_matches(str(item["loc"][-1]), known, 1, 0.0)[0]
        return f"unknown field {where}. The nearest is {nearest}"
    if item["type"] == "missing":
        return f"{where} is missing"
    if item["type"] == "value_error":
        return f"{where}: {item['ctx']['error']}"
    return f"{where} = {item['input']!r}: {item['msg']}"


# {name: all fields}, as from `STEPS[name].model_dump()`.
StepEntry = Annotated[dict[str, dict[str, Any]], BeforeValidator(_parse_step)]
