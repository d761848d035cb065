"""Makes the page that lists every configuration key.

python -m schemas.config.config_table > docs/configuration.md
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

from pydantic.fields import FieldInfo

from schemas.config.config import Config
from schemas.config.section import Section, section_of

_HEAD = """# Configuration

These are all keys of a YAML file for `--config`, and of `--set key=value`; values are YAML.
An unknown key, or a key without effect beside the others, is refused with the reason.
The full configuration of a run, defaults included, is saved beside its model as `config.yaml`.

`make docs` generates this page from the configuration classes.
"""
_TYPES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true`, `false`"}
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "ge": ">=", "exclusiveMaximum": "<", "maximum": "<="}
_GREATEST = 2**31  # bounds from here on are those of the machine


class Row(NamedTuple):
    """A key that takes a value; the texts are Markdown."""

    key: str
    values: str
    default: str
    meaning: str


def page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for name, field in Config.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            parts.append(f"## {name}\n\n{_summary(section)}\n\n{table(rows(section, f'{name}.'))}")
    return "\n".join(parts)


def rows(section: type[Section], prefix: str) -> Iterator[Row]:
    """Lists the keys of a section and of the sections inside it, in their order.

    Args:
        section: a configuration section.
        prefix: prefix of its keys, such as "train.".
    """
    schema = section.model_json_schema()
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        if inner is not None:
            yield from rows(inner, f"{prefix}{name}.")
        elif (entry := _entry_section(field)) is not None:
            yield from rows(entry, f"{prefix}{name}.<name>.")
        else:
            described = _resolved(schema["properties"][name], schema)
            yield Row(f"`{prefix}{name}`", _values(described, schema), _default(field), field.description or "")


def _entry_section(field: FieldInfo) -> type[Section] | None:
    """Returns the section that the values of a mapping have, as in data.splits."""
    return section_of((get_args(field.annotation) or (None,))[-1])


def _summary(section: type[Section]) -> str:
    return (section.__doc__ or "").partition("\n")[0]


def table(keys: Iterable[Row]) -> str:
    """Returns the keys as a Markdown table."""
    lines = ["| key | values | default | meaning |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in keys]
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    default = field.get_default(call_default_factory=True)
    return "none" if default is None else f"`{json.dumps(default)}`"


def _resolved(described: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = described.get("$ref")
    return described if reference is None else schema["$defs"][reference.rpartition("/")[2]]


def _values(described: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    described = _resolved(described, schema)
    if "anyOf" in described:
        return " or ".join(_values(part, schema) for part in described["anyOf"] if part.get("type") != "null")
    if "const" in described:
        return f"`{described['const']}`"
    if "enum" in described:
        return ", ".join(f"`{value}`" for value in described["enum"])
    kind = described.get("type")
    if kind == "object":
        of = described.get("additionalProperties")
        name = _values(described["propertyNames"], schema) if "propertyNames" in described else "name"
        return f"{{{name}: {_values(of, schema) if isinstance(of, Mapping) else 'value'}}}"
    if kind == "array":
        return _list(described, schema)
    bounds = {sign: described[key] for key, sign in _BOUNDS.items() if abs(described.get(key, _GREATEST)) < _GREATEST}
    return " ".join([_TYPES.get(str(kind), "value"), *(f"{sign} {bound:g}" for sign, bound in bounds.items())])


def _list(described: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "prefixItems" in described:
        return f"[{', '.join(_values(part, schema) for part in described['prefixItems'])}]"
    return f"list of {_values(described['items'], schema)}"


if __name__ == "__main__":
    print(page(), end="")
