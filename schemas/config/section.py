"""The base of every part of the configuration."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration: immutable, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)

    def refuse(self, keys: Iterable[str], because: str) -> None:
        """Refuses keys that cannot act, where they are set to other than their defaults.

        Args:
            keys: of this section.
            because: goes on from "... does nothing".

        Raises:
            ValueError: for validators to let through.
        """
        for key in keys:
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                raise ValueError(f"{key} = {value} does nothing {because}")


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a key's type is, or None where the key takes a value."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _compiles(expression: str) -> str:
    try:
        re.compile(expression)
    except re.error as error:
        raise ValueError(f"{expression!r} is no regular expression: {error}") from None
    return expression


RegularExpression = Annotated[str, AfterValidator(_compiles)]

# Where in a variable's path an expression has to match.
PatternMatch = Literal["start", "anywhere"]


MetricName = Literal["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"]
