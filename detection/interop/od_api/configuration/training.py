"""The Object Detection API's `train_config`, as keys of our configuration."""

from collections.abc import Callable
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from detection.interop.conversion import Keys
from detection.interop.text_proto import Message
from schemas.config.train.augmentation_steps import REFUSED_STEPS, STEPS

_SCHEDULE = "train.schedule"
_RATE, _STEPS = 0.002, 4_000_000  # defaults of all learning rates, and of the steps of their decay
_OFF: Keys = {"train.augment.horizontal_flip": False, "train.augment.scale_min": 1.0, "train.augment.scale_max": 1.0}
_FLIP, _JITTER = "random_horizontal_flip", "random_scale_crop_and_pad_to_square"
# Checkpoint types, and ours.
_FINE_TUNE = {"classification": "classification", "detection": "detection", "full": "full"}


def training_keys(train: Message, *, ema_is_evaluated: bool, is_tf1: bool) -> Keys:
    """Returns the keys of a `train_config`.

    Args:
        train: the message; without fields, all have the original's defaults.
        ema_is_evaluated: `use_moving_averages` of the `eval_config`.
        is_tf1: the trainer is that of TF1.
    """
    steps, clip = train.get("num_steps", 0), train.get("gradient_clipping_by_norm", 0.0)
    if not steps:
        train.refuse("num_steps", "0: a training has an end here; set train.steps")
    if train.get("use_bfloat16", False):
        train.note("use_bfloat16", "only on TPUs there: set train.precision=mixed_bfloat16 for them")
    keys: Keys = {"train.steps": steps} if steps else {}
    keys |= {"train.batch_size": train.get("batch_size", 32)}
    keys |= {"train.clip.per_variable_norm": None, "train.clip.global_norm": clip if clip > 0.0 else None}
    keys |= _optimizer_keys(train.message("optimizer"), steps, is_tf1=is_tf1) | _initial_keys(train, is_tf1=is_tf1)
    return keys | _ema_keys(train.message("optimizer"), ema_is_evaluated) | augment_keys(train)


def _ema_keys(optimizer: Message, is_evaluated: bool) -> Keys:
    if not optimizer.get("use_moving_average", True):
        return {"train.ema.enabled": False}
    return {
        "train.ema.decay": optimizer.get("moving_average_decay", 0.9999),
        "train.ema.include_batch_norm": False,
        "train.ema.use_moving_averages": is_evaluated,
    }


def _initial_keys(train: Message, *, is_tf1: bool) -> Keys:
    """Returns the keys of the initial weights."""
    path, kind = train.get("fine_tune_checkpoint", ""), train.get("fine_tune_checkpoint_type", "")
    is_detection = train.get("from_detection_checkpoint", False)
    version = train.get("fine_tune_checkpoint_version", "V1", enum=("UNKNOWN", "V1", "V2"))
    if not path:
        return {"model.weights": "none"}
    kind = kind or ("detection" if is_detection else "classification")
    if kind not in _FINE_TUNE:
        train.refuse("fine_tune_checkpoint_type", f"{kind}: known are {', '.join(_FINE_TUNE)}")
        return {}
    if version != "V2" and not is_tf1:
        train.note("fine_tune_checkpoint_version", f"{version}: the original's TF2 trainer refuses it")
    if kind == "detection":
        text = "loads the heads here, too, class outputs by name, unless the checkpoint is a backbone alone"
        train.note("fine_tune_checkpoint_type", text)
    return {"train.init.checkpoint": path, "train.init.fine_tune_type": _FINE_TUNE[kind]}


def _optimizer_keys(optimizer: Message, steps: int, *, is_tf1: bool) -> Keys:
    names = ("momentum_optimizer", "adam_optimizer", "rms_prop_optimizer")
    kind = optimizer.kind("optimizer", *names, reason=f"known are {', '.join(names)}")
    if not kind:
        return {}
    rule = optimizer.message(kind)
    rate = rule.message("learning_rate")
    schedule = rate.kind("rate", *_RATES, reason=f"known are {', '.join(_RATES)}")
    values = _RATES[schedule](rate.message(schedule), steps) if schedule else {}
    keys = {f"{_SCHEDULE}.{name}": value for name, value in values.items()}
    if kind == "adam_optimizer":
        return keys | {"train.optimizer.name": "adam", "train.optimizer.epsilon": rule.get("epsilon", 1e-8)}
    keys["train.optimizer.momentum"] = rule.get("momentum_optimizer_value", 0.9)
    if kind == "momentum_optimizer":
        legacy = is_tf1 and keys["train.optimizer.momentum"] > 0.0
        return keys | {"train.optimizer.name": "sgd", "train.optimizer.legacy_momentum": legacy}
    decay, epsilon = rule.get("decay", 0.9), rule.get("epsilon", 1.0)
    if is_tf1:
        keys["train.optimizer.initial_accumulator_value"] = 1.0
    else:
        text = "the mean square's; the original's TF2 trainer takes it for a decay of the learning rate, or fails"
        rule.note("decay", text)
    return keys | {"train.optimizer.name": "rmsprop", "train.optimizer.rho": decay, "train.optimizer.epsilon": epsilon}


def _constant(rate: Message, steps: int) -> dict[str, Any]:
    return {"name": "constant", "learning_rate": rate.get("learning_rate", _RATE), "warmup_steps": 0}


def _exponential(rate: Message, steps: int) -> dict[str, Any]:
    values = {
        "name": "exponential",
        "learning_rate": rate.get("initial_learning_rate", _RATE),
        "decay_steps": rate.get("decay_steps", _STEPS),
        "decay_factor": rate.get("decay_factor", 0.95),
        "staircase": rate.get("staircase", True),
        "end_learning_rate": rate.get("min_learning_rate", 0.0),
        "warmup_steps": rate.get("burnin_steps", 0),
    }
    burn_in = max(rate.get("burnin_learning_rate", 0.0) or values["learning_rate"], values["end_learning_rate"])
    return values | ({"warmup": "constant", "warmup_learning_rate": burn_in} if values["warmup_steps"] else {})


def _manual(rate: Message, steps: int) -> dict[str, Any]:
    """Returns the keys of a `manual_step_learning_rate`; its warm-up ends at the first entry."""
    initial = rate.get("initial_learning_rate", _RATE)
    entries = [(entry.get("step", 0), entry.get("learning_rate", _RATE)) for entry in rate.messages("schedule")]
    values: dict[str, Any] = {"warmup_steps": 0}
    if rate.get("warmup", False) and entries:
        values = {"warmup_steps": entries[0][0], "warmup_learning_rate": initial}
        initial = entries.pop(0)[1]
    while entries and not entries[0][0]:  # from the first step on
        initial = entries.pop(0)[1]
    reached = [entry for entry in entries if not steps or entry[0] < steps]
    if len(reached) < len(entries):
        rate.note("schedule", f"entries from step {steps} on are after the last step")
    values["learning_rate"] = initial
    if not reached:
        return values | {"name": "constant"}
    boundaries, rates = zip(*reached, strict=True)
    return values | {"name": "step", "boundaries": list(boundaries), "rates": list(rates)}


def _cosine(rate: Message, steps: int) -> dict[str, Any]:
    total = rate.get("total_steps", _STEPS)
    peak, first = rate.get("learning_rate_base", _RATE), rate.get("warmup_learning_rate", 0.0002)
    if first > peak:
        reason = f"{first:g}: above learning_rate_base, {peak:g}, which the original refuses, too"
        rate.refuse("warmup_learning_rate", reason)
    return {
        "name": "cosine",
        "learning_rate": peak,
        "warmup_steps": rate.get("warmup_steps", 10_000),
        "warmup_learning_rate": first,
        "hold_steps": rate.get("hold_base_rate_steps", 0),
        "total_steps": None if total == steps else total,
    }


_RATES: dict[str, Callable[[Message, int], dict[str, Any]]] = {
    "constant_learning_rate": _constant,
    "exponential_decay_learning_rate": _exponential,
    "manual_step_learning_rate": _manual,
    "cosine_decay_learning_rate": _cosine,
}


def augment_keys(train: Message) -> Keys:
    """Returns the keys of the steps of a `train_config`; without steps, nothing is augmented."""
    keys, steps = dict(_OFF), []
    reason = "there is no such augmentation here"
    options = [
        (option.kind("step", *STEPS, *REFUSED_STEPS, reason=reason), option)
        for option in train.messages("data_augmentation_options")
    ]
    # The input pipeline ends with a flip and the scale jitter.
    if options and options[-1][0] == _JITTER:
        keys |= _jitter(options.pop()[1].message(_JITTER))
    if options and options[-1][0] == _FLIP and not _values(options[-1][1].message(_FLIP), STEPS[_FLIP]):
        options.pop()
        keys["train.augment.horizontal_flip"] = True
    for name, option in options:
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
    default = STEPS[_JITTER]().model_dump()
    side, low, high = (step.get(name, default[name]) for name in ("output_size", "scale_min", "scale_max"))
    step.note("output_size", f"{side}: images are scaled and cropped to model.image_size here")
    return {"train.augment.scale_min": low, "train.augment.scale_max": high}


def _values(step: Message, section: Any) -> dict[str, Any]:
    """Returns the fields of a step that are set; the others have the same defaults here."""
    values: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if name != "operations" and name in step:
            found = step.values(name, object)
            is_list = isinstance(field.default, tuple) or get_origin(field.annotation) is tuple
            values[name] = found if is_list or len(found) > 1 else found[0]
    if "operations" in step:
        (operation, _) = get_args(section.model_fields["operations"].annotation)
        values["operations"] = [_values(one, operation) for one in step.messages("operations")]
    return values


def _reason(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    return f"{where}: {item['ctx']['error'] if item['type'] == 'value_error' else item['msg']}"
