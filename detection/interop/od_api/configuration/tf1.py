"""Fields of a `train_config` that the Object Detection API's TF1 trainer obeys, and the TF2 trainer ignores.

Source: `legacy/trainer.py` and `utils/variables_helper.py` of the original.
"""

import re
from collections.abc import Collection, Iterator, Sequence

from detection.interop.conversion import Conversion, Keys
from detection.interop.od_api.checkpoints.formats import FORMATS
from detection.interop.od_api.checkpoints.slim import tf1_names
from detection.interop.text_proto import Message
from detection.models.registry import detector_from_config

_FROZEN = {"freeze_variables": "train.freeze", "update_trainable_variables": "train.trainable"}


def tf1_keys(train: Message, model: Keys) -> Keys:
    """Returns the keys of the TF1 trainer.

    Args:
        train: the `train_config`.
        model: keys of the model; {}: no network that is known.
    """
    clip = train.get("gradient_clipping_by_norm", 0.0)
    keys: Keys = {"train.clip.per_variable_norm": clip if clip > 0.0 else None, "train.clip.global_norm": None}
    if factor := train.get("bias_grad_multiplier", 0.0):
        keys |= {"train.clip.bias_multiplier": factor, "train.clip.bias_variables": "bias"}
    if hours := train.get("keep_checkpoint_every_n_hours", 0):
        keys["train.keep_checkpoint_every_n_hours"] = hours
    if train.get("summarize_gradients", False):
        keys["train.summaries.gradient_norms"] = True
        train.note("summarize_gradients", "the norms; train.summaries.gradient_histograms_every writes histograms")
    train.get("load_all_detection_checkpoint_vars", False)  # heads are loaded as they fit, with and without it
    for name, key in _FROZEN.items():
        if (expressions := train.values(name, str)) and model:
            keys |= _frozen(train, name, key, expressions, model)
    return keys


def _frozen(train: Message, name: str, key: str, expressions: Sequence[str], model: Keys) -> Keys:
    """Returns the key for our variables whose names in TF1 match one of the expressions from the start."""
    try:
        patterns = [re.compile(expression) for expression in expressions]
    except re.error as error:
        train.refuse(name, f"not a regular expression: {error}")
        return {}
    detector = detector_from_config(Conversion(model).config("model").model, [{}])
    kind = next(one for one in FORMATS if isinstance(detector.config, one.config_class))
    shapes = {variable.path: tuple(variable.shape) for variable in detector.variables}
    theirs = tf1_names(kind({}, "").sources(shapes, detector.config), detector.config.backbone.name)
    found = {path for path, names in theirs.items() if any(one.match(name) for one in patterns for name in names)}
    if not found:
        train.refuse(name, f"{', '.join(expressions)}: matches no variable of the network in TF1")
        return {}
    text = f"{len(found)} of {len(shapes)} variables, by their names here"
    train.note(name, text if key.endswith("trainable") else f"{text}; their batch-norm statistics are frozen, too")
    return {key: list(_expressions(found, shapes, ""))}


def _expressions(found: Collection[str], paths: Collection[str], scope: str) -> Iterator[str]:
    """Yields expressions that match the found ones of all paths below a scope, by the largest scopes."""
    below = [path for path in paths if path.startswith(scope)]
    chosen = [path for path in below if path in found]
    if len(chosen) == len(below):
        yield re.escape(scope)
    elif chosen:
        parts = dict.fromkeys(path.removeprefix(scope).partition("/")[:2] for path in below)
        for part, slash in parts:
            yield from _expressions(found, below, f"{scope}{part}{slash}")
