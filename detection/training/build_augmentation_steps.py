"""Builds the steps of `train.augment.steps` from their sections."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from detection.input_pipeline.augmentation import colors, crops, erasing, flip, objects, resizing
from detection.input_pipeline.augmentation.autoaugment import POLICIES, autoaugment
from detection.input_pipeline.record_decoder import num_keypoints
from detection.input_pipeline.sample import Sample
from detection.input_pipeline.training_batches import Augmentation
from schemas.config.train.augmentation_steps import STEPS
from schemas.errors import ConfigError

_FIRST_SEED = 100  # the steps' seeds follow it, by position; see `build_input._Seed`
_SSD = [
    crops.CropOperation(overlap, 0.5, 2.0, 0.1, 1.0, overlap_thresh=overlap, random_coef=0.15)
    for overlap in crops.MIN_OVERLAPS
]

# A section's values, and the data set's categories in the order of the classes.
_Fields = Mapping[str, Any]
_Categories = Sequence[Mapping[str, Any]]
_Apply = Callable[..., Sample]


def augmentation_steps(
    entries: Sequence[Mapping[str, Mapping[str, Any]]], categories: _Categories, *, with_keypoints: bool
) -> list[Augmentation]:
    """Builds steps in order.

    Args:
        entries: {name: all fields} of each step, as `AugmentConfig.steps` has them.
        categories: COCO categories, in the order of the classes.
        with_keypoints: the samples have keypoints.

    Raises:
        ConfigError: a step names an unknown category, or keypoints cannot be mirrored.
    """
    steps = []
    for number, entry in enumerate(entries):
        ((name, fields),) = entry.items()
        values = STEPS[name].model_validate(fields).model_dump()
        where = f"train.augment.steps.{number}.{name}"
        if name in _FLIPS:
            probability, apply = values["probability"], _flip(name, values, categories, with_keypoints, where)
        else:
            # A crop that is skipped may still be padded, so that crops draw their own.
            probability = 1.0 if "crop" in name else 1.0 - values.pop("random_coef", 0.0)
            apply = _BUILDERS[name](values) if name in _BUILDERS else _labels(name, values, categories, where)
        steps.append(Augmentation(_FIRST_SEED + number, apply, probability=probability))
    return steps


def _flip(name: str, values: _Fields, categories: _Categories, with_keypoints: bool, where: str) -> _Apply:
    function, permutation_key, by_name = _FLIPS[name]
    flips = None
    if with_keypoints and values[permutation_key]:
        permutation = list(values[permutation_key])
        if sorted(permutation) != list(range(num_keypoints(categories))):
            raise ConfigError(
                f"{where}.{permutation_key} = {permutation}: list each index from 0 to "
                f"{num_keypoints(categories) - 1} once, or remove the field."
            )
        flips = [permutation] * len(categories)
    elif with_keypoints and by_name:
        flips = flip.keypoint_flips(categories, key=where)
    return lambda sample, seed: function(sample, keypoint_flips=flips)


_FLIPS: dict[str, tuple[_Apply, str, bool]] = {
    "random_horizontal_flip": (flip.horizontal_flip, "keypoint_flip_permutation", True),
    "random_vertical_flip": (flip.vertical_flip, "keypoint_flip_permutation", True),
    "random_rotation90": (flip.rotation90, "keypoint_rot_permutation", False),
}


def _labels(name: str, values: _Fields, categories: _Categories, where: str) -> _Apply:
    ids = [category["id"] for category in categories]
    labels = {key: value for key, value in values.items() if "label" in key}
    for key, value in labels.items():
        unknown = set(value if isinstance(value, tuple) else [value]) - set(ids)
        if unknown:
            raise ConfigError(
                f"{where}.{key}: no category has the id {min(unknown)}. The data set's are {', '.join(map(str, ids))}."
            )
        labels[key] = tuple(map(ids.index, value)) if isinstance(value, tuple) else ids.index(value)
    if name == "remap_labels":
        return partial(objects.remap_labels, **labels)
    return partial(objects.drop_label_probabilistically, **{**values, **labels})


def _plain(function: _Apply) -> Callable[[_Fields], _Apply]:
    """The function's arguments are the step's fields."""
    return lambda values: partial(function, **values)


def _color(**keys: Callable[[_Fields], Any]) -> Callable[[_Fields], _Apply]:
    """The colour jitter with these arguments, computed from the fields."""
    return lambda values: partial(
        colors.random_color_jitter, **{key: function(values) for key, function in keys.items()}
    )


def _deltas(values: _Fields) -> tuple[float, float]:
    return values["min_delta"], values["max_delta"]


def _operation(values: _Fields, **more: float) -> crops.CropOperation:
    known = {key: value for key, value in values.items() if key in crops.CropOperation._fields}
    return crops.CropOperation(**known, **more)


def _padding(values: _Fields) -> tuple[Any, Any, Any]:
    color = values.get("pad_color", tuple(values.get(f"pad_color_{channel}") or 0.0 for channel in "rgb"))
    if "pad_color_r" in values and all(values[f"pad_color_{channel}"] is None for channel in "rgb"):
        color = ()
    return values["min_padded_size_ratio"], values["max_padded_size_ratio"], color


def _ssd_crop(values: _Fields) -> _Apply:
    return partial(crops.random_crop, operations=[_operation(each) for each in values["operations"]] or _SSD)


def _crop_pad(values: _Fields) -> _Apply:
    operations = values.get("operations", [values])
    return partial(
        resizing.random_crop_pad_image,
        operations=[_operation(each) for each in operations] or _SSD[1:],
        paddings=[_padding(each) for each in operations] or [((1.0, 1.0), (2.0, 2.0), ())] * len(_SSD[1:]),
    )


def _ssd_fixed_aspect(values: _Fields) -> _Apply:
    aspect = values["aspect_ratio"]
    ratios = {"min_aspect_ratio": aspect, "max_aspect_ratio": aspect}
    given = [_operation(each, **ratios) for each in values["operations"]]
    operations = given or [each._replace(**ratios) for each in _SSD]
    return _then(
        partial(crops.random_crop, operations=operations),
        partial(crops.random_crop_to_aspect_ratio, aspect_ratio=aspect),
    )


def _ssd_pad_fixed_aspect(values: _Fields) -> _Apply:
    sizes = {key: value for key, value in values.items() if key != "operations"}
    return _then(_ssd_crop(values), partial(resizing.pad_to_aspect_ratio, **sizes))


def _then(first: _Apply, second: _Apply) -> _Apply:
    def apply(sample: Sample, *, seed: tf.Tensor) -> Sample:
        seeds = tf.unstack(tf.random.split(seed, 2))
        return second(first(sample, seed=seeds[0]), seed=seeds[1])

    return apply


def _crop_to_aspect(values: _Fields) -> _Apply:
    arguments = {key: values[key] for key in ("aspect_ratio", "overlap_thresh")}
    return partial(crops.random_crop_to_aspect_ratio, **arguments)


def _resize(values: _Fields) -> _Apply:
    method = values["method"].lower().removesuffix("_neighbor")
    return partial(resizing.resize_image, **{**values, "method": method})


_BUILDERS: dict[str, Callable[[_Fields], _Apply]] = {
    "random_pixel_value_scale": _plain(colors.random_pixel_value_scale),
    "random_image_scale": _plain(resizing.random_image_scale),
    "random_rgb_to_gray": _color(gray_probability=lambda values: values["probability"]),
    "random_adjust_brightness": _color(brightness=lambda values: values["max_delta"]),
    "random_adjust_contrast": _color(contrast=_deltas),
    "random_adjust_hue": _color(hue=lambda values: values["max_delta"]),
    "random_adjust_saturation": _color(saturation=_deltas),
    "random_distort_color": _color(
        brightness=lambda _: 32.0 / 255.0,
        saturation=lambda _: (0.5, 1.5),
        hue=lambda _: 0.2,
        contrast=lambda _: (0.5, 1.5),
        contrast_second=lambda values: values["color_ordering"] == 1,
    ),
    "random_jitter_boxes": _plain(objects.random_jitter_boxes),
    "random_crop_image": lambda values: partial(crops.random_crop, operations=[_operation(values)]),
    "random_pad_image": _plain(resizing.random_pad_image),
    "random_crop_pad_image": _crop_pad,
    "random_crop_to_aspect_ratio": _crop_to_aspect,
    "random_black_patches": _plain(erasing.random_black_patches),
    "random_resize_method": _plain(resizing.random_resize_method),
    "resize_image": _resize,
    "ssd_random_crop": _ssd_crop,
    "ssd_random_crop_pad": _crop_pad,
    "ssd_random_crop_fixed_aspect_ratio": _ssd_fixed_aspect,
    "ssd_random_crop_pad_fixed_aspect_ratio": _ssd_pad_fixed_aspect,
    "random_absolute_pad_image": _plain(resizing.random_absolute_pad_image),
    "random_self_concat_image": _plain(resizing.random_self_concat_image),
    "autoaugment_image": lambda values: partial(autoaugment, policy=POLICIES[values["policy_name"]]),
    "random_jpeg_quality": _plain(colors.random_jpeg_quality),
    "random_downscale_to_target_pixels": _plain(resizing.random_downscale_to_target_pixels),
    "random_patch_gaussian": _plain(erasing.random_patch_gaussian),
    "random_square_crop_by_scale": _plain(resizing.random_square_crop_by_scale),
    "random_scale_crop_and_pad_to_square": _plain(resizing.random_scale_crop_and_pad_to_square),
    "adjust_gamma": _plain(colors.adjust_gamma),
}
