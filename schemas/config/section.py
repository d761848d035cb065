"""The base class of every configuration section, and the value types that sections share."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

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


def section_of(annotation: Any) -> type[Section] | None:
    """Returns the section of a key's type, or None if the type is not a section."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _compiles(expression: str) -> str:
    try:
        re.compile(expression)
    except re.error as error:
        raise ValueError(f"{expression!r} is not a regular expression: {error}") from None
    return expression


RegularExpression = Annotated[str, AfterValidator(_compiles)]

# Where an expression has to match a variable's path.
PatternMatch = Literal["start", "anywhere"]
