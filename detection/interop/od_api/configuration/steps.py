"""The Object Detection API's `data_augmentation_options`, as keys of `train.augment`."""

from typing import Any, get_args

from pydantic import ValidationError

from detection.interop.conversion import Keys
from detection.interop.text_proto import Message
from schemas.config.train.augmentation_steps import REFUSED_STEPS, STEPS

_OFF: Keys = {"train.augment.horizontal_flip": False, "train.augment.scale_min": 1.0, "train.augment.scale_max": 1.0}
_FLIP, _JITTER = "random_horizontal_flip", "random_scale_crop_and_pad_to_square"


def augment_keys(train: Message) -> Keys:
    """Returns the keys of the steps of a `train_config`; without steps, nothing is augmented."""
    keys, steps = dict(_OFF), []
    options = list(train.messages("data_augmentation_options"))
    # The input pipeline ends with a flip and the scale jitter.
    if options and _JITTER in options[-1]:
        keys |= _jitter(options.pop().message(_JITTER))
    if options and _FLIP in options[-1] and not _values(options[-1].message(_FLIP), STEPS[_FLIP]):
        options.pop()
        keys["train.augment.horizontal_flip"] = True
    for option in options:
        name = option.kind("step", *STEPS, *REFUSED_STEPS, reason="there is no such augmentation here")
        if name in REFUSED_STEPS:
            option.refuse(name, REFUSED_STEPS[name])
        elif name:
            values = _values(option.message(name), STEPS[name])
            try:
                STEPS[name].model_validate(values)
            except ValidationError as error:
                option.refuse(name, "; ".join(map(_reason, error.errors())))
            else:
                steps.append({name: values} if values else name)
    return keys | ({"train.augment.steps": steps} if steps else {})


def _jitter(step: Message) -> Keys:
    side = step["output_size"]
    step.note("output_size", f"{side}: images are scaled and cropped to model.image_size here")
    return {"train.augment.scale_min": step["scale_min"], "train.augment.scale_max": step["scale_max"]}


def _values(step: Message, section: Any) -> dict[str, Any]:
    """Returns the fields of a step that are set; the others have the same defaults here."""
    values: dict[str, Any] = {
        name: step[name] for name in section.model_fields if name != "operations" and name in step
    }
    if "operations" in step:
        (operation, _) = get_args(section.model_fields["operations"].annotation)
        values["operations"] = [_values(one, operation) for one in step.messages("operations")]
    return values


def _reason(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    return f"{where}: {item['ctx']['error'] if item['type'] == 'value_error' else item['msg']}"
