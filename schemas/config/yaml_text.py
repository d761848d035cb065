"""YAML parser for the configuration, with limits for sizes and values.

Dates stay strings, so that `run.name: 2026-11-21` is a name; numbers are finite and have
at most 64 bits; strings are UTF-8 without NUL, as required of paths.
"""

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import yaml

from schemas.errors import ConfigError
from schemas.limits import MAX_CONFIG, MAX_CONFIG_DEPTH, MAX_CONFIG_VALUES
from schemas.quoting import quoted

_INT64 = 2**63
_STANDARD = "tag:yaml.org,2002:"  # prefix abbreviated as `!!`


class _Loader(yaml.CSafeLoader):
    """YAML 1.1 without timestamps; an invalid value of a tag, or a key that stands twice, is an error with its line."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_STANDARD}timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuses a key that stands twice, of which YAML would keep the last without a word."""
        seen: dict[str, yaml.Node] = {}
        for key, _ in node.value:
            if (
                isinstance(key, yaml.ScalarNode)
                and key.tag != f"{_STANDARD}merge"
                and seen.setdefault(key.value, key) is not key
            ):
                line = seen[key.value].start_mark.line + 1
                problem = f"{quoted(key.value)} stands here a second time, after line {line}. Write it once"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            problem = f"{quoted(node.value)} cannot be read as {node.tag.replace(_STANDARD, '!!')}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None


def parse_yaml(text: str, where: str) -> Any:
    """Parses a YAML text of limited size.

    Args:
        text: one document.
        where: name of the document in error messages.

    Raises:
        ConfigError: the text exceeds a limit of `schemas.limits` for length, nesting or number of
            values, or an alias contains itself.
        yaml.YAMLError: the text is not YAML.
    """
    if len(text) > MAX_CONFIG:
        raise ConfigError(f"{where}: more than {MAX_CONFIG} characters. Pass a configuration file.")
    if not _is_utf8(text):  # as from a terminal; the parser takes bytes
        raise yaml.YAMLError("not UTF-8")
    size = _Size(where)
    for event in yaml.parse(text, _Loader):
        size.add(event)
    return yaml.load(text, _Loader)


def check_values(tree: Any, where: str) -> None:
    """Checks that every value of a configuration tree is supported.

    Raises:
        ConfigError: an integer of more than 64 bits, NaN or infinity, a string that is not
            UTF-8 or has a NUL character, or deeper nesting than `MAX_CONFIG_DEPTH`; the
            message has the key.
    """
    for key, value in _leaves(tree, where):
        reason = None
        if isinstance(value, int) and not -_INT64 <= value < _INT64:
            reason = f"an integer of {value.bit_length()} bits. Write one of at most 64"
        elif isinstance(value, float) and not math.isfinite(value):
            reason = f"{value} is not finite. Write a finite number"
        elif isinstance(value, str) and "\0" in value:
            reason = f"{quoted(value)} has a NUL character. Remove it"
        elif isinstance(value, str) and not value.isascii() and not _is_utf8(value):
            reason = f"{quoted(value)} is not UTF-8. Rename the file"
        if reason is not None:
            raise ConfigError(f"{where}: {key}: {reason}." if key else f"{where}: {reason}.")


class _Size:
    """Counts nesting and values before construction; an alias counts like its anchor."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._open: list[list[int]] = [[0, 0]]  # per open collection: its values, itself included; nesting below it
        self._names: list[str | None] = []  # anchors of the open collections
        self._anchors: dict[str | None, tuple[int, int]] = {}

    def add(self, event: yaml.Event) -> None:
        """Counts one event.

        Raises:
            ConfigError: a limit is exceeded, or an alias contains itself.
        """
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append([1, 0])
            self._names.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            size, depth = self._open.pop()
            self._put(self._names.pop(), size, depth + 1)
        elif isinstance(event, yaml.ScalarEvent):
            self._put(event.anchor, 1, 0)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in self._names:
                raise self._error(event, f"*{event.anchor} contains itself. Write it out")
            self._put(None, *self._anchors.get(event.anchor, (1, 0)))
        if len(self._names) + self._open[-1][1] > MAX_CONFIG_DEPTH:
            raise self._error(event, f"nested more than {MAX_CONFIG_DEPTH} levels deep. Reduce the nesting")
        if sum(size for size, _ in self._open) > MAX_CONFIG_VALUES:
            raise self._error(event, f"more than {MAX_CONFIG_VALUES} values, including those of aliases. Use fewer")

    def _put(self, anchor: str | None, size: int, depth: int) -> None:
        self._anchors[anchor] = (size, depth)
        parent = self._open[-1]
        parent[0] += size
        parent[1] = max(parent[1], depth)

    def _error(self, event: yaml.Event, reason: str) -> ConfigError:
        line = f", line {event.start_mark.line + 1}" if event.start_mark is not None else ""
        return ConfigError(f"{self._where}{line}: {reason}.")


def _leaves(tree: Any, where: str) -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, value) of all values in nested mappings and lists, including keys."""
    waiting = [("", tree, 0)]
    while waiting:
        key, value, depth = waiting.pop()
        if depth > MAX_CONFIG_DEPTH:
            raise ConfigError(
                f"{where}: {quoted(key)}: nested more than {MAX_CONFIG_DEPTH} levels deep. Reduce the nesting."
            )
        if isinstance(value, dict):
            for name, inner in value.items():
                yield key, name
                label = name if isinstance(name, str) and _is_utf8(name) else quoted(name)
                waiting.append((f"{key}.{label}" if key else label, inner, depth + 1))
        elif isinstance(value, list | tuple | set):
            waiting += [(f"{key}[{position}]", inner, depth + 1) for position, inner in enumerate(value)]
        else:
            yield key, value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
