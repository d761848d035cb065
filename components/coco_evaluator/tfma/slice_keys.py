"""Names of slices."""

from typing import TypeAlias

Value: TypeAlias = str | int | float

# TFMA's SliceKeyType: (feature, value) pairs by ascending feature; empty: all images.
SliceKey: TypeAlias = tuple[tuple[str, Value], ...]

OVERALL: SliceKey = ()


def describe(key: SliceKey) -> str:
    """A slice in words.

    >>> describe((("brightness", "dark"), ("image/width", 640)))
    'brightness = dark, image/width = 640'
    >>> describe(())
    'all images'
    """
    return ", ".join(f"{feature} = {value}" for feature, value in key) or "all images"
