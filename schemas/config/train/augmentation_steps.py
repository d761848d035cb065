"""The steps of `train.augment.steps`: the TF Object Detection API's preprocessing steps, by their names.

Fields and defaults are those of its preprocessor.proto.  Steps that would change the network's
input or the kind of its labels are in `REFUSED_STEPS`, with the reason.
"""

import difflib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError

from schemas.config.section import Section

Part = Annotated[float, Field(ge=0.0, le=1.0)]
PositivePart = Annotated[float, Field(gt=0.0, le=1.0)]
_Ratios = tuple[PositiveFloat, PositiveFloat]
_Value = Annotated[float, Field(ge=0.0, le=255.0)]


def _clipped(value: bool) -> bool:
    if not value:
        raise ValueError("boxes are always clipped, as the input is a window of the image; remove clip_boxes")
    return value


_Clip = Annotated[bool, AfterValidator(_clipped)]


class Step(Section):
    """A step; for each pair of fields that differ by `min` and `max`, the min is at most the max."""

    def _check_keys(self) -> None:
        for low in (name for name in type(self).model_fields if "min" in name):
            high = low.replace("min", "max")
            lows, highs = getattr(self, low), getattr(self, high, None)
            pairs = zip(lows, highs or (), strict=False) if isinstance(lows, tuple) else [(lows, highs)]
            if any(least is not None and most is not None and least > most for least, most in pairs):
                raise ValueError(f"{low} = {lows} is above {high} = {highs}")


class RandomHorizontalFlip(Step):
    """Mirrors left and right."""

    keypoint_flip_permutation: tuple[NonNegativeInt, ...] = Field(
        (), description="index of the keypoint that becomes each keypoint; empty: pairs left and right by their names"
    )
    probability: Part = Field(0.5, description="probability per image")


class RandomVerticalFlip(RandomHorizontalFlip):
    """Mirrors top and bottom."""


class RandomRotation90(Step):
    """Rotates by 90 degrees anticlockwise."""

    keypoint_rot_permutation: tuple[NonNegativeInt, ...] = Field(
        (), description="index of the keypoint that becomes each keypoint; empty: keypoints keep their indices"
    )
    probability: Part = Field(0.5, description="probability per image")


class RandomPixelValueScale(Step):
    """Multiplies each value of each pixel by a factor of its own."""

    minval: float = Field(0.9, ge=0.0, description="min factor")
    maxval: float = Field(1.1, ge=0.0, description="max factor")


class RandomImageScale(Step):
    """Resizes the image by a random factor."""

    min_scale_ratio: PositiveFloat = Field(0.5, description="min factor")
    max_scale_ratio: PositiveFloat = Field(2.0, description="max factor")


class RandomRgbToGray(Step):
    """Removes the colours; the image keeps three channels."""

    probability: Part = Field(0.1, description="probability per image")


class RandomAdjustBrightness(Step):
    """Adds a random value to all pixels."""

    max_delta: Part = Field(0.2, description="max change, as a fraction of 255")


class RandomAdjustContrast(Step):
    """Multiplies the distances to each channel's mean by a random factor."""

    min_delta: float = Field(0.8, ge=0.0, description="min factor")
    max_delta: float = Field(1.25, ge=0.0, description="max factor")


class RandomAdjustHue(Step):
    """Rotates the hue."""

    max_delta: float = Field(0.02, ge=0.0, le=0.5, description="max rotation, as a fraction of the colour circle")


class RandomAdjustSaturation(RandomAdjustContrast):
    """Multiplies the saturation by a random factor."""


class RandomDistortColor(Step):
    """Changes brightness by up to 32, hue by up to 0.2, saturation and contrast by factors of 0.5 to 1.5."""

    color_ordering: Literal[0, 1] = Field(
        0, description="0: brightness, saturation, hue, contrast; 1: brightness, contrast, saturation, hue"
    )


class RandomJitterBoxes(Step):
    """Moves the sides of each box by up to half of `ratio` times its height or width."""

    ratio: Part = Field(0.05, description="range of the movement, as a fraction of the box")
    jitter_mode: Literal[
        "DEFAULT", "EXPAND", "SHRINK", "EXPAND_SYMMETRIC", "SHRINK_SYMMETRIC", "EXPAND_SYMMETRIC_XY",
        "SHRINK_SYMMETRIC_XY",
    ] = Field("DEFAULT", description="direction; SYMMETRIC: opposite sides move equally; XY: all four do")  # fmt: skip


class _Overlap(Step):
    """Fields of all crops."""

    overlap_thresh: Part = Field(0.3, description="min fraction of an object in the window; others are dropped")
    clip_boxes: _Clip = Field(True, description="clip boxes to the window; only true")


class RandomCropImage(_Overlap):
    """Crops a random window that covers an object; the image stays as it is after 100 attempts without success."""

    min_object_covered: Part = Field(1.0, description="min fraction of at least one object that the window covers")
    min_aspect_ratio: PositiveFloat = Field(0.75, description="min width / height of the window")
    max_aspect_ratio: PositiveFloat = Field(1.33, description="max width / height of the window")
    min_area: PositivePart = Field(0.1, description="min area of the window, as a fraction of the image")
    max_area: PositivePart = Field(1.0, description="max area of the window, as a fraction of the image")
    random_coef: Part = Field(0.0, description="probability of the unchanged image")


class RandomCropPadImage(RandomCropImage):
    """Crops as random_crop_image, and pads to a random size."""

    min_padded_size_ratio: _Ratios = Field((1.0, 1.0), description="min height and width / the original image's")
    max_padded_size_ratio: _Ratios = Field((2.0, 2.0), description="max height and width / the original image's")
    pad_color: tuple[()] | tuple[_Value, _Value, _Value] = Field((), description="RGB; empty: the image's mean")


class RandomCropToAspectRatio(_Overlap):
    """Crops the largest window of an aspect ratio, at a random place."""

    aspect_ratio: PositiveFloat = Field(1.0, description="width / height of the window")


class RandomPadImage(Step):
    """Pads to a random size, with the image at a random place."""

    min_image_height: PositiveInt | None = Field(None, description="min height, pixels; none: the image's")
    min_image_width: PositiveInt | None = Field(None, description="min width, pixels; none: the image's")
    max_image_height: PositiveInt | None = Field(None, description="max height, pixels; none: twice the image's")
    max_image_width: PositiveInt | None = Field(None, description="max width, pixels; none: twice the image's")
    pad_color: tuple[()] | tuple[_Value, _Value, _Value] = Field((), description="RGB; empty: the image's mean")


class RandomAbsolutePadImage(Step):
    """Pads by a random number of pixels, with the image at a random place."""

    max_height_padding: NonNegativeInt = Field(description="max rows to add")
    max_width_padding: NonNegativeInt = Field(description="max columns to add")
    pad_color: tuple[()] | tuple[_Value, _Value, _Value] = Field((), description="RGB; empty: the image's mean")


class RandomBlackPatches(Step):
    """Blackens random squares."""

    max_black_patches: NonNegativeInt = Field(10, description="number of squares to draw")
    probability: Part = Field(0.5, description="probability of each square")
    size_to_image_ratio: Part = Field(0.1, description="side of the square / the image's short side")


class RandomResizeMethod(Step):
    """Resizes with one of four methods, drawn per image."""

    target_height: PositiveInt = Field(description="height, pixels")
    target_width: PositiveInt = Field(description="width, pixels")


class ResizeImage(Step):
    """Resizes."""

    new_height: PositiveInt = Field(description="height, pixels")
    new_width: PositiveInt = Field(description="width, pixels")
    method: Literal["AREA", "BICUBIC", "BILINEAR", "NEAREST_NEIGHBOR"] = Field("BILINEAR", description="kernel")


class _Operation(RandomCropImage):
    """An operation of the SSD crops: what is absent is 0, and aspect ratio and area must be given."""

    min_object_covered: Part = Field(0.0, description="min fraction of at least one object that the window covers")
    overlap_thresh: Part = Field(0.0, description="min fraction of an object in the window; others are dropped")
    min_area: PositivePart = Field(description="min area of the window, as a fraction of the image")
    max_area: PositivePart = Field(description="max area of the window, as a fraction of the image")


class _SsdOperation(_Operation):
    min_aspect_ratio: PositiveFloat = Field(description="min width / height of the window")
    max_aspect_ratio: PositiveFloat = Field(description="max width / height of the window")


class _SsdPadOperation(_SsdOperation):
    min_padded_size_ratio: _Ratios = Field((1.0, 1.0), description="min height and width / the original image's")
    max_padded_size_ratio: _Ratios = Field((2.0, 2.0), description="max height and width / the original image's")
    pad_color_r: _Value | None = Field(None, description="red of the padding; none: the image's mean colour")
    pad_color_g: _Value | None = Field(None, description="green of the padding")
    pad_color_b: _Value | None = Field(None, description="blue of the padding")


class _FixedAspectOperation(Step):
    min_object_covered: Part = Field(0.0, description="min fraction of at least one object that the window covers")
    min_area: PositivePart = Field(description="min area of the window, as a fraction of the image")
    max_area: PositivePart = Field(description="max area of the window, as a fraction of the image")
    overlap_thresh: Part = Field(0.0, description="min fraction of an object in the window; others are dropped")
    clip_boxes: _Clip = Field(True, description="clip boxes to the window; only true")
    random_coef: Part = Field(0.0, description="probability of the unchanged image")


class SsdRandomCrop(Step):
    """Crops by one of several operations, drawn per image; none given: SSD's seven."""

    operations: tuple[_SsdOperation, ...] = Field((), description="operations, with the fields of random_crop_image")


class SsdRandomCropPad(Step):
    """Crops and pads by one of several operations; none given: the last six of SSD's."""

    operations: tuple[_SsdPadOperation, ...] = Field((), description="operations, with the fields of the crop and pad")


class SsdRandomCropFixedAspectRatio(Step):
    """Crops by one of several operations to an aspect ratio; none given: SSD's seven."""

    operations: tuple[_FixedAspectOperation, ...] = Field((), description="operations, without an aspect ratio")
    aspect_ratio: PositiveFloat = Field(1.0, description="width / height of the result")


class SsdRandomCropPadFixedAspectRatio(Step):
    """Crops by one of several operations, and pads below and to the right to an aspect ratio."""

    operations: tuple[_SsdOperation, ...] = Field((), description="operations, with the fields of random_crop_image")
    aspect_ratio: PositiveFloat = Field(1.0, description="width / height of the result")
    min_padded_size_ratio: _Ratios = Field((1.0, 1.0), description="min height and width / those without a margin")
    max_padded_size_ratio: _Ratios = Field((2.0, 2.0), description="max height and width / those without a margin")


class RandomSelfConcatImage(Step):
    """Repeats the image and its objects below or to the right."""

    concat_vertical_probability: Part = Field(0.1, description="probability of a copy below")
    concat_horizontal_probability: Part = Field(0.1, description="probability of a copy to the right")


class AutoAugmentImage(Step):
    """Applies a policy of AutoAugment."""

    policy_name: Literal["v0", "v1", "v2", "v3", "test"] = Field("v0", description="name of the policy")


class DropLabelProbabilistically(Step):
    """Drops objects of a category; their pixels stay, as background."""

    label: int = Field(description="category id of the data set")
    drop_probability: Part = Field(1.0, description="probability per object")


class RemapLabels(Step):
    """Changes the category of objects."""

    original_labels: tuple[int, ...] = Field(description="category ids of the data set to replace")
    new_label: int = Field(description="category id of the data set")


class RandomJpegQuality(Step):
    """Compresses as JPEG of a random quality."""

    random_coef: Part = Field(0.0, description="probability of the unchanged image")
    min_jpeg_quality: int = Field(0, ge=0, le=100, description="min quality")
    max_jpeg_quality: int = Field(100, ge=0, le=100, description="max quality")


class RandomDownscaleToTargetPixels(Step):
    """Shrinks larger images to a random number of pixels."""

    random_coef: Part = Field(0.0, description="probability of the unchanged image")
    min_target_pixels: PositiveInt = Field(300000, description="min pixels")
    max_target_pixels: PositiveInt = Field(500000, description="max pixels")


class RandomPatchGaussian(Step):
    """Adds Gaussian noise to a random square."""

    random_coef: Part = Field(0.0, description="probability of the unchanged image")
    min_patch_size: PositiveInt = Field(1, description="min side, pixels")
    max_patch_size: PositiveInt = Field(250, description="max side, pixels")
    min_gaussian_stddev: float = Field(0.0, ge=0.0, description="min standard deviation, as a fraction of 255")
    max_gaussian_stddev: float = Field(1.0, ge=0.0, description="max standard deviation, as a fraction of 255")


class RandomSquareCropByScale(Step):
    """Crops a square about a random centre; pads with black where it leaves the image."""

    max_border: PositiveInt = Field(128, description="min distance of the centre to the border, halved as needed")
    scale_min: PositiveFloat = Field(0.6, description="min side / the image's long side")
    scale_max: PositiveFloat = Field(1.3, description="max side / the image's long side")
    num_scales: PositiveInt = Field(8, description="number of evenly spaced scales to draw from")


class RandomScaleCropAndPadToSquare(Step):
    """Scales, crops a random window and pads with black below and to the right to a square."""

    output_size: PositiveInt = Field(512, description="side of the result, pixels")
    scale_min: PositiveFloat = Field(0.1, description="min long side / output_size, before the crop")
    scale_max: PositiveFloat = Field(2.0, description="max long side / output_size, before the crop")


class AdjustGamma(Step):
    """Computes gain * value^gamma, with values as fractions of 255."""

    gamma: PositiveFloat = Field(1.0, description="exponent")
    gain: PositiveFloat = Field(1.0, description="factor")


STEPS: dict[str, type[Step]] = {
    "random_horizontal_flip": RandomHorizontalFlip,
    "random_pixel_value_scale": RandomPixelValueScale,
    "random_image_scale": RandomImageScale,
    "random_rgb_to_gray": RandomRgbToGray,
    "random_adjust_brightness": RandomAdjustBrightness,
    "random_adjust_contrast": RandomAdjustContrast,
    "random_adjust_hue": RandomAdjustHue,
    "random_adjust_saturation": RandomAdjustSaturation,
    "random_distort_color": RandomDistortColor,
    "random_jitter_boxes": RandomJitterBoxes,
    "random_crop_image": RandomCropImage,
    "random_pad_image": RandomPadImage,
    "random_crop_pad_image": RandomCropPadImage,
    "random_crop_to_aspect_ratio": RandomCropToAspectRatio,
    "random_black_patches": RandomBlackPatches,
    "random_resize_method": RandomResizeMethod,
    "resize_image": ResizeImage,
    "ssd_random_crop": SsdRandomCrop,
    "ssd_random_crop_pad": SsdRandomCropPad,
    "ssd_random_crop_fixed_aspect_ratio": SsdRandomCropFixedAspectRatio,
    "ssd_random_crop_pad_fixed_aspect_ratio": SsdRandomCropPadFixedAspectRatio,
    "random_vertical_flip": RandomVerticalFlip,
    "random_rotation90": RandomRotation90,
    "random_absolute_pad_image": RandomAbsolutePadImage,
    "random_self_concat_image": RandomSelfConcatImage,
    "autoaugment_image": AutoAugmentImage,
    "drop_label_probabilistically": DropLabelProbabilistically,
    "remap_labels": RemapLabels,
    "random_jpeg_quality": RandomJpegQuality,
    "random_downscale_to_target_pixels": RandomDownscaleToTargetPixels,
    "random_patch_gaussian": RandomPatchGaussian,
    "random_square_crop_by_scale": RandomSquareCropByScale,
    "random_scale_crop_and_pad_to_square": RandomScaleCropAndPadToSquare,
    "adjust_gamma": AdjustGamma,
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
            known = [*STEPS[step].model_fields["operations"].annotation.__args__[0].model_fields]  # type: ignore[union-attr]
        nearest = difflib.get_close_matches(str(item["loc"][-1]), known, 1, 0.0)[0]
        return f"unknown field {where}. The nearest is {nearest}"
    if item["type"] == "missing":
        return f"{where} is missing"
    if item["type"] == "value_error":
        return f"{where}: {item['ctx']['error']}"
    return f"{where} = {item['input']!r}: {item['msg']}"


# {name: all fields}, as from `STEPS[name].model_dump()`.
StepEntry = Annotated[dict[str, dict[str, Any]], BeforeValidator(_parse_step)]
