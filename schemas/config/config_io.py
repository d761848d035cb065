"""Reading and writing the configuration: YAML files and dotted `--set` assignments."""

import copy
import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from schemas.config.config import Config
from schemas.config.section import Section, section_of, value_at
from schemas.config.train.training import LENGTHS, STEPS_OF_EPOCHS
from schemas.config.yaml_text import check_values, parse_yaml
from schemas.errors import ConfigError
from schemas.limits import MAX_CONFIG
from schemas.quoting import quoted

# Part of pydantic's location for one of several types of a value, such as a number or `auto`.
_ALTERNATIVE = re.compile(r"constrained-\w+|(literal|tuple)\[.*\]")


def load_config(path: str | Path | None = None, assignments: Sequence[str] = (), *, text: str | None = None) -> Config:
    """Reads a configuration file and applies `key.path=value` assignments to it.

    An assignment in epochs, such as `train.epochs=3`, replaces the file's key in steps, and vice versa.

    Args:
        path: YAML file; None: start from the defaults.
        assignments: `--set` arguments; values are read as YAML.
        text: content of the file, if already read.

    Raises:
        ConfigError: an unreadable file, an unknown key (the message has the nearest one)
            or a value of the wrong type.
    """
    tree: dict[str, Any] = {}
    if path is not None:
        tree = _read_yaml(path) if text is None else _tree_of(text, str(path))
    where = str(path) if path is not None else "configuration"
    assigned = copy.deepcopy(tree)
    for assignment in assignments:
        _assign(assigned, assignment)
    _replace_other_units(assigned, {assignment.partition("=")[0] for assignment in assignments})
    try:
        return parse_config(assigned, "--set" if assignments and path is not None else where)
    except ConfigError:
        parse_config(tree, where)  # reports errors in the file itself
        raise


def parse_config(tree: dict[str, Any], where: str = "configuration") -> Config:
    """Validates a nested dictionary; error messages start with `where`."""
    check_values(tree, where)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item, where) for item in error.errors())) from None


def to_yaml(
    config: Config, sections: Collection[str] | None = None, *, exclude: Mapping[str, Collection[str]] | None = None
) -> str:
    """Writes the resolved configuration as YAML, which `load_config` reads back unchanged.

    Args:
        config: the configuration.
        sections: names of the sections to write, with sorted keys; None: all, in their order.
        exclude: keys to omit, by section.
    """
    without = {section: set(keys) for section, keys in (exclude or {}).items()}
    tree = config.model_dump(mode="json", include=None if sections is None else set(sections), exclude=without)
    return str(yaml.dump(tree, Dumper=yaml.CSafeDumper, sort_keys=sections is not None))


def from_yaml(text: str, where: str = "configuration") -> Config:
    """Reads a configuration from the text of `to_yaml`; error messages start with `where`."""
    return parse_config(_tree_of(text, where), where)


def _read_yaml(path: str | Path) -> dict[str, Any]:
    try:
        with Path(path).open(encoding="utf-8") as file:  # bounded, as the path may be a device
            text = file.read(MAX_CONFIG + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror}. Check --config.") from None
    except UnicodeDecodeError as error:
        raise _no_yaml(str(path), error) from None
    return _tree_of(text, str(path))


def _tree_of(text: str, where: str) -> dict[str, Any]:
    """Returns the nested dictionary of a configuration's text."""
    try:
        tree = parse_yaml(text, where)
    except yaml.YAMLError as error:
        raise _no_yaml(where, error) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{where}: a configuration is a mapping of sections such as `train:`, not {quoted(tree)}.")
    return tree


def _no_yaml(where: str, error: Exception) -> ConfigError:
    return ConfigError(f"{where}: not a YAML file: {' '.join(str(error).split())}")


def _assign(tree: dict[str, Any], assignment: str) -> None:
    key, separator, text = assignment.partition("=")
    if not separator or not key:
        raise ConfigError(f"--set {quoted(assignment)}: expected key=value, for example --set train.batch_size=8.")
    try:
        value = parse_yaml(text, f"--set {quoted(key)}")
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(f"--set {quoted(key)}: {error.problem}.") from None
    except yaml.YAMLError:  # for example a string with brackets
        value = text
    *parents, leaf = key.split(".")
    node = tree
    for depth, parent in enumerate(parents):
        child = node.get(parent)
        if child is None:
            child = node[parent] = {}
        if not isinstance(child, dict):
            section = ".".join(parents[: depth + 1])
            raise ConfigError(f"--set {quoted(assignment)}: {section} is a value, not a section.")
        node = child
    node[leaf] = value


def _replace_other_units(tree: dict[str, Any], assigned: set[str]) -> None:
    """Removes a file's length in one unit if an assignment sets it in another."""
    for pair in (*STEPS_OF_EPOCHS.items(), *combinations(LENGTHS, 2)):
        units = {f"train.{key}" for key in pair}
        if len(units & assigned) != 1:
            continue
        (other,) = units - assigned
        place, _, leaf = other.rpartition(".")
        section = value_at(tree, place)
        if isinstance(section, dict):
            section.pop(leaf, None)


def key_of(item: Any) -> str:
    """Returns the dotted key of an entry of `ValidationError.errors()`."""
    return ".".join(str(part) for part in item["loc"] if not _ALTERNATIVE.fullmatch(str(part)))


def _explain(item: Any, where: str) -> str:
    key = key_of(item)
    if item["type"] == "extra_forbidden":
        return f"{where}: unknown key {key}. The nearest known key is {nearest_key(key, Config)}."
    if item["type"] == "model_type":
        inner = next((name for name in _known_keys(Config) if name.startswith(f"{key}.")), None)
        example = f", such as {inner}" if inner else ""
        return f"{where}: {key} = {quoted(item['input'])}: {key} is a section. Set one of its keys{example}."
    if item["type"] == "missing":
        return f"{where}: {key} is missing."
    if item["type"] == "value_error":  # contradicting keys
        return f"{': '.join(filter(None, (where, key)))}: {item['ctx']['error']}."
    return f"{where}: {key} = {quoted(item['input'])}: {item['msg']}."


def nearest_key(key: str, section: type[Section]) -> str:
    """Returns the most similar key of a section: one of the same last name, then of the same section, then any.

    >>> [nearest_key(key, Config) for key in ("train.learning_rate", "batchsize", "train.seeds")]
    ['train.schedule.learning_rate', 'train.batch_size', 'train.seed']
    """

    def last(name: str) -> str:
        return name.rpartition(".")[2].replace("_", "").replace("-", "").lower()

    known = list(_known_keys(section))
    same = [name for name in known if last(name) == last(key)]
    siblings = [name for name in known if name.rpartition(".")[0] == key.rpartition(".")[0]]
    choices = ((same, 0.0), (siblings, 0.7), (known, 0.0))
    return next(near[0] for names, cutoff in choices if (near := difflib.get_close_matches(key, names, 1, cutoff)))


def _known_keys(section: type[Section], prefix: str = "") -> Iterable[str]:
    for name, field in section.model_fields.items():
        yield prefix + name
        inner = section_of(field.annotation)
        if inner is not None:
            yield from _known_keys(inner, f"{prefix}{name}.")
