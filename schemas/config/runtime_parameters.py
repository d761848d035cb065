"""Parameters of a compiled pipeline: configuration keys that a submission can set without recompilation.

Values are strings or numbers and are validated like `--set` by the component that first reads them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from schemas.config.config import Config
from schemas.config.config_io import parse_config
from schemas.config.section import value_at
from schemas.config.yaml_text import parse_yaml
from schemas.errors import ConfigError
from schemas.quoting import quoted

_WHERE = "parameters of this run"


class RuntimeParameter(NamedTuple):
    """A configuration key that a submission may set.

    key: path in the configuration, such as "train.steps".
    kind: type of the values; an empty string stands for none.
    is_yaml: the string is YAML for a section or a mapping.
    replaces: keys that a number replaces, if the configuration has them.
    """

    key: str
    kind: type[str] | type[int]
    is_yaml: bool = False
    replaces: tuple[str, ...] = ()


RUNTIME_PARAMETERS: Mapping[str, RuntimeParameter] = {
    "data_root": RuntimeParameter("data.root", str),
    "data_span": RuntimeParameter("data.span", str),
    "model_name": RuntimeParameter("model.name", str),
    "train_steps": RuntimeParameter("train.steps", int, replaces=("train.epochs", "train.budget")),
    "train_batch_size": RuntimeParameter("train.batch_size", int, replaces=("train.memory_limit",)),
    "evaluate_thresholds": RuntimeParameter("evaluate.thresholds", str, is_yaml=True),
    "push_directory": RuntimeParameter("push.directory", str),
}


def default_value(config: Config, name: str) -> str | int:
    """Returns the value of a parameter that leaves the configuration unchanged.

    It is 0 if the configuration has no number: epochs, or a batch size of auto.

    Args:
        config: complete configuration.
        name: key of `RUNTIME_PARAMETERS`.
    """
    parameter = RUNTIME_PARAMETERS[name]
    tree = config.model_dump(mode="json")
    value = value_at(tree, parameter.key)
    if parameter.kind is int:
        replaced = any(value_at(tree, key) is not None for key in parameter.replaces)
        return value if isinstance(value, int) and not replaced else 0
    if parameter.is_yaml:
        return yaml.safe_dump(value, default_flow_style=True, width=10**9).strip()
    return "" if value is None else str(value)


def with_parameters(config: Config, properties: Mapping[str, Any]) -> Config:
    """Returns the configuration with the parameters of a run.

    Args:
        config: complete configuration.
        properties: values by name; other names are ignored.

    Raises:
        ConfigError: an invalid value; the message names its key.
    """
    given = {name: properties[name] for name in RUNTIME_PARAMETERS if properties.get(name) is not None}
    # 0 replaces values that are not numbers.
    given = {name: value for name, value in given.items() if value != 0 or default_value(config, name) != 0}
    if not given:
        return config
    tree = config.model_dump(mode="json", exclude_unset=True)
    for name, value in given.items():
        parameter = RUNTIME_PARAMETERS[name]
        for key in parameter.replaces:
            _section(tree, key).pop(key.rpartition(".")[2], None)
        _section(tree, parameter.key)[parameter.key.rpartition(".")[2]] = _parsed(name, value)
    return parse_config(tree, where=_WHERE)


def _section(tree: dict[str, Any], key: str) -> dict[str, Any]:
    for parent in key.split(".")[:-1]:
        tree = tree.setdefault(parent, {})
    return tree


def _parsed(name: str, value: Any) -> Any:
    parameter = RUNTIME_PARAMETERS[name]
    if parameter.kind is int:
        return value
    if not value:
        return {} if parameter.is_yaml else None
    if not parameter.is_yaml:
        return value
    try:
        return parse_yaml(value, f"{_WHERE}: {name}")
    except yaml.YAMLError as error:
        raise ConfigError(f"{_WHERE}: {name} = {quoted(value)}: not YAML: {' '.join(str(error).split())}.") from None
