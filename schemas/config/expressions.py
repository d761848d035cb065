"""Regular expressions as values of the configuration."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator


def _compiles(expression: str) -> str:
    try:
        re.compile(expression)
    except re.error as error:
        raise ValueError(f"{expression!r} is no regular expression: {error}") from None
    return expression


RegularExpression = Annotated[str, AfterValidator(_compiles)]

# Where in a variable's path an expression has to match.
PatternMatch = Literal["start", "anywhere"]
