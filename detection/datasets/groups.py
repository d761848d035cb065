"""Groups: images that are copies of one picture, or belong together, and stay on one side of every division."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from schemas.errors import ConfigError

# Roboflow writes copies of 1.jpg as 1_jpg.rf.<hash>.jpg.
_COPY = re.compile(r"(?P<name>.+?)(_(jpe?g|png|bmp|gif|tiff?|webp))?\.rf\.[0-9a-zA-Z]{8,}$")


def group_of(image: Mapping[str, Any], rule: str = "") -> str:
    """Returns the name of an image's group: its path without suffix, and without the hash of an augmented copy.

    Args:
        image: entry of `images`.
        rule: `data.group`: a pattern on the file name, whose first group counts, or all that it matches; or the name
            of a field of the image. Images without one are groups of their own.
    """
    name = str(image["file_name"])
    if rule:
        found = _pattern(rule).search(name) if is_pattern(rule) else None
        value = (found[found.re.groups and 1] if found else None) if is_pattern(rule) else image.get(rule)
        if value is not None:
            return f"{rule}={value}"
    folder, slash, last = name.rpartition("/")
    stem = last.rpartition(".")[0] or last
    copy = _COPY.fullmatch(stem)
    return f"{folder}{slash}{copy['name'] if copy else stem}"


def is_pattern(rule: str) -> bool:
    """Returns whether a rule is a pattern, and not the name of a field."""
    return re.fullmatch(r"[A-Za-z_]\w*", rule) is None


@lru_cache
def _pattern(rule: str) -> re.Pattern[str]:
    try:
        return re.compile(rule)
    except re.error as error:
        raise ConfigError(f"data.group = {rule!r}: no regular expression: {error}. Correct it.") from None
