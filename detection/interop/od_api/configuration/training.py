"""The Object Detection API's `train_config`, as keys of our configuration."""

from collections.abc import Callable
from typing import Any

from detection.interop.conversion import Keys
from detection.interop.od_api.configuration.steps import augment_keys
from detection.interop.text_proto import Message

_SCHEDULE = "train.schedule"
# Checkpoint types, and ours.
_FINE_TUNE = {"classification": "classification", "detection": "detection", "full": "full"}


def training_keys(train: Message, *, ema_is_evaluated: bool) -> Keys:
    """Returns the keys of a `train_config`.

    Args:
        train: the message; without fields, all have the original's defaults.
        ema_is_evaluated: `use_moving_averages` of the `eval_config`.
    """
    steps, clip = train["num_steps"], train["gradient_clipping_by_norm"]
    if not steps:
        train.refuse("num_steps", "0: a training has an end here; set train.steps")
    if train["use_bfloat16"]:
        train.note("use_bfloat16", "only on TPUs there: set train.precision=mixed_bfloat16 for them")
    keys: Keys = {"train.steps": steps} if steps else {}
    keys |= {"train.batch_size": train["batch_size"]}
    keys |= {"train.clip.per_variable_norm": None, "train.clip.global_norm": clip if clip > 0.0 else None}
    keys |= _optimizer_keys(train.message("optimizer"), steps) | _initial_keys(train)
    return keys | _ema_keys(train.message("optimizer"), ema_is_evaluated) | augment_keys(train)


def _ema_keys(optimizer: Message, is_evaluated: bool) -> Keys:
    if not optimizer["use_moving_average"]:
        return {"train.ema.enabled": False}
    return {
        "train.ema.decay": optimizer["moving_average_decay"],
        "train.ema.include_batch_norm": False,
        "train.ema.use_moving_averages": is_evaluated,
    }


def _initial_keys(train: Message) -> Keys:
    """Returns the keys of the initial weights."""
    path, kind = train["fine_tune_checkpoint"], train["fine_tune_checkpoint_type"]
    is_detection, version = train["from_detection_checkpoint"], train["fine_tune_checkpoint_version"]
    if not path:
        return {"model.weights": "none"}
    kind = kind or ("detection" if is_detection else "classification")
    if kind not in _FINE_TUNE:
        train.refuse("fine_tune_checkpoint_type", f"{kind}: known are {', '.join(_FINE_TUNE)}")
        return {}
    if version != "V2":
        train.note("fine_tune_checkpoint_version", f"{version}: the original's TF2 trainer refuses it")
    text = "an original's checkpoint: import it first, and set the imported folder: "
    text += "cocoflow import-checkpoint --from od-api --checkpoint PATH --output DIR"
    if kind == "detection":
        text += "; detection loads the heads here, too, class outputs by name"
    train.note("fine_tune_checkpoint", text)
    return {"train.init.checkpoint": path, "train.init.fine_tune_type": _FINE_TUNE[kind]}


def _optimizer_keys(optimizer: Message, steps: int) -> Keys:
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
        return keys | {"train.optimizer.name": "adam", "train.optimizer.epsilon": rule["epsilon"]}
    keys["train.optimizer.momentum"] = rule["momentum_optimizer_value"]
    if kind == "momentum_optimizer":
        return keys | {"train.optimizer.name": "sgd"}
    text = "the mean square's; the original's TF2 trainer takes it for a decay of the learning rate, or fails"
    decay, epsilon = rule["decay"], rule["epsilon"]
    rule.note("decay", text)
    return keys | {"train.optimizer.name": "rmsprop", "train.optimizer.rho": decay, "train.optimizer.epsilon": epsilon}


def _constant(rate: Message, steps: int) -> dict[str, Any]:
    return {"name": "constant", "learning_rate": rate["learning_rate"], "warmup_steps": 0}


def _exponential(rate: Message, steps: int) -> dict[str, Any]:
    values = {
        "name": "exponential",
        "learning_rate": rate["initial_learning_rate"],
        "decay_steps": rate["decay_steps"],
        "decay_factor": rate["decay_factor"],
        "staircase": rate["staircase"],
        "end_learning_rate": rate["min_learning_rate"],
        "warmup_steps": rate["burnin_steps"],
    }
    burn_in = rate["burnin_learning_rate"]
    return values | ({"warmup": "constant", "warmup_learning_rate": burn_in} if values["warmup_steps"] else {})


def _manual(rate: Message, steps: int) -> dict[str, Any]:
    """Returns the keys of a `manual_step_learning_rate`; its warm-up ends at the first entry."""
    initial = rate["initial_learning_rate"]
    entries = [(entry["step"], entry["learning_rate"]) for entry in rate.messages("schedule")]
    values: dict[str, Any] = {"warmup_steps": 0}
    if rate["warmup"] and entries:
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
    total = rate["total_steps"]
    return {
        "name": "cosine",
        "learning_rate": rate["learning_rate_base"],
        "warmup_steps": rate["warmup_steps"],
        "warmup_learning_rate": rate["warmup_learning_rate"],
        "hold_steps": rate["hold_base_rate_steps"],
        "total_steps": None if total == steps else total,
    }


_RATES: dict[str, Callable[[Message, int], dict[str, Any]]] = {
    "constant_learning_rate": _constant,
    "exponential_decay_learning_rate": _exponential,
    "manual_step_learning_rate": _manual,
    "cosine_decay_learning_rate": _cosine,
}
