"""Hyperparameters in a YAML file or `key=value,key=value`, and tables of the equivalent keys of our configuration."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import yaml

from detection.interop.conversion import Conversion, Keys, Remark
from schemas.config.yaml_text import parse_yaml
from schemas.errors import ConfigError
from schemas.quoting import quoted

Trainer = Literal["tf1", "tf2"]


class Run(NamedTuple):
    """A run of another program.

    hparams: specified values by key.
    table: all hparams of the program.
    trainer: google/automl's `tf2/train.py` (`tf2`) or `main.py` (`tf1`), on TensorFlow 1's estimators.
    """

    hparams: Mapping[str, Any]
    table: Mapping[str, "Hparam"]
    trainer: Trainer = "tf2"

    def get(self, name: str) -> Any:
        """Returns the value of an hparam, or its default."""
        return self.hparams.get(name, self.table[name].default)


class Hparam(NamedTuple):
    """A key of another program.

    default: its default there.
    keys: equivalent keys here; "": none.
    meaning: effect of the key, or the reason why only the default is supported.
    convert: maps a value to keys; raises `ValueError` for unsupported values.
    """

    default: Any
    keys: str
    meaning: str
    convert: Callable[[Any, Run], Keys]


def same(default: Any, key: str, meaning: str = "the same") -> Hparam:
    """A key with the same values."""
    return Hparam(default, key, meaning, lambda value, run: {key: value})


def choice(default: Any, key: str, values: Mapping[Any, Any], meaning: str) -> Hparam:
    """A key with other values here; those that `values` does not have are refused."""

    def convert(value: Any, run: Run) -> Keys:
        if value not in values:
            raise ValueError(f"not one of {', '.join(str(known) for known in values)}")
        return {key: values[value]}

    return Hparam(default, key, meaning, convert)


def any_value(default: Any, meaning: str) -> Hparam:
    """A key that needs no equivalent."""
    return Hparam(default, "", meaning, lambda value, run: {})


def only_default(default: Any, reason: str) -> Hparam:
    """A key whose other values are refused."""

    def convert(value: Any, run: Run) -> Keys:
        if value != default:
            raise ValueError(reason)
        return {}

    return Hparam(default, "", f"refused: {reason}", convert)


def unless_none(default: Any, key: str, meaning: str = "the same") -> Hparam:
    """A key whose None means the default here."""
    return Hparam(default, key, meaning, lambda value, run: {} if value is None else {key: value})


def unless_zero(default: float | None, key: str, meaning: str) -> Hparam:
    """A key whose 0 or None means the default here."""
    return Hparam(default, key, meaning, lambda value, run: {key: value} if value else {})


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


def convert_hparams(
    run: Run, keys: Keys, *, defaults: Mapping[str, Any], program: str, where: str, text: str = ""
) -> Conversion:
    """Converts hparams.

    Args:
        run: the run.
        keys: keys that hparams do not determine.
        defaults: values of hparams that are not specified; others have our defaults.
        program: the program, for messages.
        where: name of the hparams in error messages.
        text: their text, for the lines.

    Raises:
        ConfigError: an unknown key, with the nearest one.
    """
    unsupported, notes = [], []
    for name in run.hparams:
        if name not in run.table:
            nearest = difflib.get_close_matches(str(name), run.table, 1, 0.0)[0]
            raise ConfigError(f"{where}: {name} is not a key of {program}'s. The nearest is {nearest}.")
    for name, value in ({**defaults, **run.hparams}).items():
        line = _line(name, text)
        rule = run.table[name]
        try:
            keys = keys | rule.convert(value, run)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            unsupported.append(Remark(f"{name} = {quoted(value)}", line, str(error)))
        else:
            if not rule.keys and name in run.hparams and not rule.meaning.startswith(("refused", "see ")):
                notes.append(Remark(name, line, rule.meaning))
    return Conversion(keys, tuple(unsupported), tuple(notes))


def _line(name: str, text: str) -> int | None:
    """Returns the line of a key in a YAML file."""
    match = re.search(rf"^\s*{re.escape(name.rpartition('.')[2])}\s*:", text, re.MULTILINE)
    return None if match is None else text.count("\n", 0, match.end()) + 1


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
