"""Writes the page of all configuration keys, and the tables on the other pages that are made from the code.

A page, or README, marks the place of a table by a comment line, `<!-- table: NAME -->`; the lines of a
table that follow it are replaced.  All else on the page is written by hand.

python -m docs.tables
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from detection.interop.automl.hparams import HPARAMS
from detection.interop.hparams import Hparam
from detection.interop.od_api.configuration.pipeline_config import NETWORKS
from detection.interop.tpu_mask_rcnn.params import PARAMS
from detection.models.registry import FAMILIES, Family
from docs.detectors import Table, all_detectors, first_choices, measurements
from schemas.config.config import Config
from schemas.config.section import Section, section_of, value_at
from schemas.config.train.augmentation_steps import REFUSED_STEPS, STEPS
from schemas.errors import CocoflowError

PAGES = Path(__file__).parent
README = PAGES.parent / "README.md"

_HEAD = """# Configuration

These are all keys of a YAML file for `--config`, and of `--set key=value`; values are YAML.
An unknown key, or a key without effect beside the others, is refused with the reason.
The full configuration of a run, defaults included, is saved beside its model as `config.yaml`.

`make docs` generates this page from the configuration classes.
"""
_TYPES = {"string": "string", "integer": "integer", "number": "number", "boolean": "`true`, `false`"}
_BOUNDS = {"exclusiveMinimum": ">", "minimum": ">=", "ge": ">=", "exclusiveMaximum": "<", "maximum": "<="}
_GREATEST = 2**31  # bounds from here on are those of the machine
_MARK = re.compile(r"^<!-- table: (.+) -->\n(?:\|.*\n)*", re.MULTILINE)


class Row(NamedTuple):
    """A key that takes a value; the texts are Markdown."""

    key: str
    values: str
    default: str
    meaning: str


def configuration_page() -> str:
    """Returns the page of all configuration keys."""
    parts = [_HEAD]
    for name, field in Config.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            parts.append(f"## {name}\n\n{_summary(section)}\n\n{option_table(rows(section, f'{name}.'))}")
    return "\n".join(parts)


def rows(section: type[Section], prefix: str, defaults: Section | None = None) -> Iterator[Row]:
    """Lists the keys of a section and of the sections inside it, in their order.

    Args:
        section: a configuration section.
        prefix: prefix of its keys, such as "train.".
        defaults: the default of the section in the one that it belongs to; None: that of the class.
    """
    schema = section.model_json_schema()
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        if inner is not None:
            default = getattr(defaults, name, None) or field.get_default(call_default_factory=True)
            if default is None:
                yield Row(f"`{prefix}{name}`", "section", "none", field.description or "")
            yield from rows(inner, f"{prefix}{name}.", default)
        elif (entry := _entry_section(field)) is not None:
            yield from rows(entry, f"{prefix}{name}.<name>.")
        else:
            described = _resolved(schema["properties"][name], schema)
            yield Row(
                f"`{prefix}{name}`",
                _values(described, schema),
                _default(field, defaults, name),
                field.description or "",
            )


def _entry_section(field: FieldInfo) -> type[Section] | None:
    """Returns the section that the values of a mapping have, as in data.splits."""
    return section_of((get_args(field.annotation) or (None,))[-1])


def _summary(section: type[Section]) -> str:
    return (section.__doc__ or "").partition("\n")[0]


def option_table(keys: Iterable[Row]) -> str:
    """Returns the keys as a Markdown table."""
    return _table(Row._fields, ([cell.replace("|", r"\|") for cell in row] for row in keys))


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    texts = [f"| {' | '.join(cells)} |\n" for cells in (header, *lines)]
    return "".join([texts[0], "|---" * len(header), "|\n", *texts[1:]])


def _default(field: FieldInfo, defaults: Section | None = None, name: str = "") -> str:
    if defaults is None and field.is_required():
        return "needed"
    default = field.get_default(call_default_factory=True) if defaults is None else getattr(defaults, name)
    return "none" if default is None else f"`{json.dumps(to_jsonable_python(default))}`"


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


def with_tables(text: str) -> str:
    """Returns the text of a page with its marked tables as they are now.

    Raises:
        CocoflowError: a mark names an unknown table.
    """

    def made(match: re.Match[str]) -> str:
        name = match[1]
        if name not in TABLES:
            raise CocoflowError(f"no table {name!r}. Known tables are {', '.join(TABLES)}.")
        return f"<!-- table: {name} -->\n{TABLES[name]()}"

    return _MARK.sub(made, text)


def _presets(family: Family) -> str:
    fields = family.config_class.PRESET_FIELDS
    return _table(
        ("model.name", *fields),
        (
            [f"`{name}`", *(_preset_value(value_at(preset, field)) for field in fields)]
            for name, preset in family.presets.items()
        ),
    )


def _preset_value(value: Any) -> str:
    return " x ".join(map(str, value)) if isinstance(value, tuple) else str(value).lower().removesuffix(".0")


def _options(family: Family) -> str:
    keys = rows(family.config_class, "model.overrides.")
    return option_table(row for row in keys if ".postprocess." not in row.key)


def _postprocess(family: Family) -> str:
    section = section_of(family.config_class.model_fields["postprocess"].annotation)
    assert section is not None
    return option_table(rows(section, "model.postprocess."))


def _networks() -> str:
    return _table(("type", "model.name"), ([f"`{kind}`", f"`{name}`"] for kind, name in NETWORKS.items()))


def _hparams(table: Mapping[str, Hparam]) -> str:
    return _table(
        ["key", "default", "key here", "meaning"],
        (
            [
                f"`{name}`",
                "none" if rule.default is None else f"`{rule.default}`",
                ", ".join(f"`{key}`" for key in rule.keys.split(", ") if key),
                rule.meaning,
            ]
            for name, rule in table.items()
        ),
    )


def _detectors(rows_of: Callable[[], Table]) -> str:
    return _table(*rows_of())


def _augmentation_steps() -> str:
    """The steps of train.augment.steps, the refused ones with the reason."""
    built = (
        [f"`{name}`", ", ".join(_field(*item) for item in step.model_fields.items()), (step.__doc__ or "").strip()]
        for name, step in STEPS.items()
    )
    refused = ([f"`{name}`", "", f"refused: {reason}."] for name, reason in REFUSED_STEPS.items())
    return _table(["step", "fields", "effect"], [*built, *refused])


def _field(name: str, field: FieldInfo) -> str:
    default = _default(field).strip("`")
    return f"`{name}`" if default in ("needed", "none") else f"`{name}: {default}`"


TABLES: Mapping[str, Callable[[], str]] = {
    f"{family.config_class.__name__} {what}": functools.partial(make, family)
    for family in FAMILIES
    for what, make in {"presets": _presets, "options": _options, "postprocess": _postprocess}.items()
} | {
    "google/automl hparams": functools.partial(_hparams, HPARAMS),
    "TPU Mask R-CNN params": functools.partial(_hparams, PARAMS),
    "Object Detection API networks": _networks,
    "augmentation steps": _augmentation_steps,
    "detectors": functools.partial(_detectors, all_detectors),
    "detectors: first choices": functools.partial(_detectors, first_choices),  # on README
    "detectors: machines": functools.partial(_detectors, measurements),
}


if __name__ == "__main__":
    for path in [README, *PAGES.glob("*.md")]:
        before = path.read_text(encoding="utf-8")
        after = configuration_page() if path.name == "configuration.md" else with_tables(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
