"""The Object Detection API's `data_augmentation_options`, as keys of `train.augment`."""

from collections.abc import Callable

from detection.conversion.conversion import Keys
from detection.conversion.text_proto import Message

_AUGMENT = "train.augment"
_SSD_CROP_PROBABILITY = 0.85  # 1 - random_coef of the default operations
# Ranges of `random_distort_color`, whose colour changes have no fields.
_DISTORT = {"brightness": 32.0 / 255.0, "saturation": [0.5, 1.5], "hue": 0.2, "contrast": [0.5, 1.5]}
_ORDER = {"autoaugment": 0, "color": 1, "ssd_crop": 2, "horizontal_flip": 2, "scale_min": 3, "scale_max": 3}
_COLOR_OFF = {"brightness": 0.0, "contrast": [1.0, 1.0], "saturation": [1.0, 1.0], "hue": 0.0, "gray_probability": 0.0}


def augment_keys(train: Message) -> Keys:
    """Returns the keys of the steps of a `train_config`; without steps, nothing is augmented."""
    found: Keys = {}
    ranks: list[int] = []
    for option in train.messages("data_augmentation_options"):
        name = option.kind("step", *_STEPS, reason="there is no such augmentation here")
        values = _STEPS[name](option.message(name)) if name else {}
        if found.keys() & values.keys():
            option.refuse(name, "a step before it changes the same; here, each acts once")
            continue
        found |= values
        ranks += [_ORDER[key.partition(".")[0]] for key in values]
    if ranks != sorted(ranks):
        train.note(
            "data_augmentation_options", "here, AutoAugment acts first, then colours, crop and flip, then scaling"
        )
    keys: Keys = {"horizontal_flip": False, "scale_min": 1.0, "scale_max": 1.0}
    if any(key.startswith("color.") for key in found):
        keys |= {"color.probability": 1.0} | {f"color.{key}": value for key, value in _COLOR_OFF.items()}
    return {f"{_AUGMENT}.{key}": value for key, value in (keys | found).items()}


def _flip(step: Message) -> Keys:
    step.only("probability", 0.5, reason="half of the images are mirrored here")
    if "keypoint_flip_permutation" in step:
        step.note("keypoint_flip_permutation", "keypoints are mirrored by their names here")
    return {"horizontal_flip": True}


def _scale_and_crop(step: Message) -> Keys:
    side = step["output_size"]
    step.note("output_size", f"{side}: images are scaled and cropped to model.image_size here")
    return {"scale_min": step["scale_min"], "scale_max": step["scale_max"]}


def _ssd_crop(step: Message) -> Keys:
    if "operations" in step:
        step.refuse("operations", "only the default operations have an equivalent here")
    return {"ssd_crop.probability": _SSD_CROP_PROBABILITY}


def _crop(step: Message) -> Keys:
    """Returns the keys of a `random_crop_image`, which is an SSD crop with one operation."""
    covered = step["min_object_covered"]
    step.only("overlap_thresh", covered, reason="objects are kept by the fraction that the crop has to cover here")
    return {
        "ssd_crop.probability": 1.0 - step["random_coef"],
        "ssd_crop.min_overlaps": [covered],
        "ssd_crop.aspect_ratio_range": [step["min_aspect_ratio"], step["max_aspect_ratio"]],
        "ssd_crop.area_range": [step["min_area"], step["max_area"]],
    }


def _range(key: str) -> Callable[[Message], Keys]:
    return lambda step: {f"color.{key}": [step["min_delta"], step["max_delta"]]}


def _number(key: str, field: str) -> Callable[[Message], Keys]:
    return lambda step: {key: step[field]}


def _distort(step: Message) -> Keys:
    step.only("color_ordering", 0, 1, reason="0 or 1")
    return {f"color.{key}": value for key, value in _DISTORT.items()}


_STEPS: dict[str, Callable[[Message], Keys]] = {
    "random_horizontal_flip": _flip,
    "random_scale_crop_and_pad_to_square": _scale_and_crop,
    "ssd_random_crop": _ssd_crop,
    "random_crop_image": _crop,
    "autoaugment_image": _number("autoaugment", "policy_name"),
    "random_adjust_brightness": _number("color.brightness", "max_delta"),
    "random_adjust_hue": _number("color.hue", "max_delta"),
    "random_adjust_contrast": _range("contrast"),
    "random_adjust_saturation": _range("saturation"),
    "random_distort_color": _distort,
    "random_rgb_to_gray": _number("color.gray_probability", "probability"),
}
