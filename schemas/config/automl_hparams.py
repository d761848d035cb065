"""Reads google/automl EfficientDet's hparams, a YAML file or `key=value,key=value`, as keys of this configuration."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from schemas.config.automl_keys import HPARAMS, Run, Trainer
from schemas.config.yaml_text import parse_yaml
from schemas.errors import ConfigError
from schemas.quoting import quoted

_OLD_NAMES = {  # of the original's earlier versions
    "train_scale_min": "jitter_min",
    "train_scale_max": "jitter_max",
    "conv_bn_relu_pattern": "conv_bn_act_pattern",
}

_DEFAULTS_THERE = ("train.", "model.postprocess.")  # keys of hparams with the original's defaults


def parse_hparams(text: str, where: str = "hparams") -> dict[str, Any]:
    """Parses a YAML mapping, or `key=value,key=value` in which `*` separates the items of a list.

    Raises:
        ConfigError: the text is neither.
    """
    try:
        tree = parse_yaml(text, where)
        if isinstance(tree, str):
            pairs = [pair.partition("=") for pair in tree.split(",") if pair.strip()]
            if not all(separator for _, separator, _ in pairs):
                raise ConfigError(f"{where}: {quoted(tree)} is not key=value,key=value.")
            tree = {key.strip(): _parse_value(key.strip(), value, where) for key, _, value in pairs}
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: not a YAML file: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: hparams are a mapping, not {quoted(tree)}.")
    return dict(_flat(tree))


def tree_from_hparams(
    hparams: Mapping[str, Any], *, batch_size: int = 64, trainer: Trainer = "tf2", where: str = "hparams"
) -> dict[str, Any]:
    """Returns the equivalent tree for `parse_config`.

    Missing hparams of training and post-processing have the original's defaults; those of the network have our
    defaults of the detector `name`.

    Args:
        hparams: values by key, as from `parse_hparams`.
        batch_size: the original's flag of that name.  Its `num_examples_per_epoch` needs no value: an epoch is
            as long as the training records.
        trainer: `tf2` for the original's `tf2/train.py`, `tf1` for its `main.py`; they differ in the warm-up's first
            learning rate, momentum, Adam, averaged variables and the constant schedule.
        where: name of the hparams in error messages.

    Raises:
        ConfigError: an unknown key, with the nearest one, or an unsupported value, with the reason.
    """
    hparams = {_OLD_NAMES.get(name, name): value for name, value in hparams.items()}
    run = Run(hparams, trainer)
    tree: dict[str, Any] = {
        "train": {"batch_size": batch_size, "schedule": {"reference_batch_size": 64}},
        "model": {"overrides": {"batch_norm_momentum": 0.99}},  # a constant there
    }
    for name in hparams:
        if name not in HPARAMS:
            nearest = difflib.get_close_matches(name, HPARAMS, 1, 0.0)[0]
            raise ConfigError(f"{where}: {name} is not a key of google/automl's. The nearest is {nearest}.")
    defaults = {name: rule.default for name, rule in HPARAMS.items() if rule.keys.startswith(_DEFAULTS_THERE)}
    for name, value in (defaults | hparams).items():
        try:
            keys = HPARAMS[name].convert(value, run)
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {name} = {quoted(value)}: {error}.") from None
        for key, converted in keys.items():
            *parents, leaf = key.split(".")
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[leaf] = converted
    return tree


def _parse_value(key: str, text: str, where: str) -> Any:
    if "*" in text and key != "var_freeze_expr":  # whose asterisks are the expression's
        return [_parse_value(key, item, where) for item in text.split("*")]
    return None if text.strip() == "None" else parse_yaml(text, where)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key == "nms_configs":
            yield from _flat(value, f"{key}.")
        else:
            yield key, value
