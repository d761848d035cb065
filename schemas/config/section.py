"""The base class of every configuration section, and the value types that sections share."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """A configuration section: immutable; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    @model_validator(mode="after")
    def _validate_keys(self) -> Self:
        self._check_keys()
        return self

    def _check_keys(self) -> None:
        """Refuses keys that contradict each other or have no effect, by a `ValueError`, which pydantic reports."""

    def refuse(self, keys: Iterable[str], because: str, *, when: bool = True) -> None:
        """Refuses keys without effect that differ from their defaults.

        Args:
            keys: keys of this section.
            because: reason, which follows "... does nothing" in the message.
            when: condition under which they have no effect.

        Raises:
            ValueError: a key differs from its default; pydantic reports it.
        """
        for key in keys if when else ():
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                raise ValueError(f"{key} = {value} does nothing {because}")

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Returns the section with changed keys.

        Args:
            changes: a tree like that of the section: the keys that an inner section does not name stay.

        Raises:
            pydantic.ValidationError: an unknown key or an invalid value.
        """
        return type(self).model_validate(self._tree(changes))

    def _tree(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        tree = self.model_dump()
        for key, value in changes.items():
            inner = getattr(self, key, None)
            tree[key] = inner._tree(value) if isinstance(inner, Section) and isinstance(value, Mapping) else value
        return tree


def section_of(annotation: Any) -> type[Section] | None:
    """Returns the section of a key's type, also of a key that may be None; None: the type is not a section."""
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    [kind] = kinds if len(kinds) == 1 else [None]
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def merged(tree: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tree with changed values.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}, "d": 4})
    {'a': {'b': 1, 'c': 3}, 'd': 4}
    """
    result = dict(tree)
    for key, value in changes.items():
        inner = result.get(key)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return result


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tree of dotted keys.

    >>> nested({"a.b": 1, "a.c": 2})
    {'a': {'b': 1, 'c': 2}}
    """
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        *parents, leaf = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def value_at(tree: Any, key: str) -> Any:
    """Returns the value of a dotted key of a section or a tree; None: there is no such key.

    >>> value_at({"a": {"b": 1}}, "a.b"), value_at({"a": {"b": 1}}, "b.c")
    (1, None)
    """
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else getattr(tree, name, None)
    return tree


def _compiles(expression: str) -> str:
    try:
        re.compile(expression)
    except re.error as error:
        raise ValueError(f"{expression!r} is not a regular expression: {error}") from None
    return expression


RegularExpression = Annotated[str, AfterValidator(_compiles)]

# Where an expression has to match a variable's path.
PatternMatch = Literal["start", "anywhere"]
