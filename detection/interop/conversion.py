"""A converted configuration, what could not be converted, and its text."""

import io
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from detection.models.registry import detector_config
from schemas.config.config import Config
from schemas.config.config_io import parse_config
from schemas.config.section import Section, nested
from schemas.errors import ConfigError
from schemas.quoting import one_line

Keys = dict[str, Any]  # values by dotted key
SEPARABLE = ("neck.separable_conv", "head.separable_conv")  # in `model.overrides`: one option of the other programs


class Remark(NamedTuple):
    """A sentence on a field of the original.

    field: dotted name.
    line: line in the original's file, from 1; None: unknown.
    text: the sentence, without a period.
    """

    field: str
    line: int | None
    text: str

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}: "
        return one_line(f"{place}{self.field}: {self.text}")


class Conversion(NamedTuple):
    """Result of a conversion.

    keys: values by dotted key of our configuration.
    unsupported: fields without an equivalent here.
    notes: fields that need none, or whose equivalent differs.
    """

    keys: Keys
    unsupported: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()

    def require_supported(self, where: str, advice: str = "") -> None:
        """Requires that each field has an equivalent.

        Raises:
            ConfigError: there are unsupported fields; the message lists them.
        """
        if self.unsupported:
            listed = "".join(f"\n  {remark}" for remark in self.unsupported)
            raise ConfigError(f"{where}: not supported here:{listed}\n{advice}".rstrip())

    def config(self, where: str) -> Config:
        """Returns the configuration.

        Raises:
            ConfigError: a value is invalid here.
        """
        config = parse_config(nested(self.keys), where)
        model = config.model
        try:
            detector_config(
                model.name,
                image_size=model.image_size,
                resize=model.resize,
                overrides=model.overrides,
                postprocess=model.postprocess,
            )
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        return config

    def to_yaml(self, where: str, program: str) -> str:
        """Returns a configuration file: the keys that differ from our defaults, after a comment with all remarks.

        Args:
            where: the original's file.
            program: name of the original.

        Raises:
            ConfigError: a value is invalid here.
        """
        tree = self.config(where).model_dump(mode="json", exclude_defaults=True)
        model = tree.setdefault("model", {})
        model.setdefault("name", Config().model.name)
        preset = detector_config(model["name"])
        for section, defaults in (("overrides", preset), ("postprocess", preset.postprocess)):
            if changed := _changes(defaults, model.pop(section, {})):
                model[section] = changed
        text = io.StringIO()
        text.write(f"# Converted from {one_line(where)}, a configuration of {program}.\n")
        _comment(text, "Not supported, and without an effect here:", self.unsupported)
        _comment(text, "Notes:", self.notes)
        yaml.safe_dump(tree, text, sort_keys=False, default_flow_style=None, width=120)
        return text.getvalue()


def _changes(section: Section, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a tree that differ from those of a section."""
    result = {}
    values = section.model_dump(mode="json")
    for key, value in tree.items():
        inner = getattr(section, key, None)
        changed = _changes(inner, value) if isinstance(inner, Section) else value
        if changed != ({} if isinstance(inner, Section) else values.get(key)):
            result[key] = changed
    return result


def _comment(text: io.StringIO, title: str, remarks: Iterable[Remark]) -> None:
    for number, remark in enumerate(remarks):
        text.write(f"# {title}\n" if not number else "")
        text.write(f"#   {remark}\n")
