"""The base of every part of the configuration."""

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict


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
