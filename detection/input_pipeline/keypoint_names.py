"""What the names of a data set's keypoints tell."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.errors import ConfigError

_SIDE = re.compile(r"(?<![a-z])(left|right|l|r)(?![a-z])", re.IGNORECASE)
_OTHER_SIDE = {"left": "right", "right": "left", "l": "r", "r": "l"}


def num_keypoints(categories: Sequence[Mapping[str, Any]]) -> int:
    """The most keypoints of any category, whose `keypoints` holds their names; 0 where none has any."""
    return max((len(category.get("keypoints", ())) for category in categories), default=0)


def keypoint_flips(categories: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Which keypoint each becomes in a mirrored image, from their names.

    A name with the word left, right, l or r ("left_eye", "Eye Right", "l-eye") becomes
    that with the other side's word; others stay what they are.

    Args:
        categories: COCO's entries, in the order of the classes; `keypoints` holds the names.

    Returns:
        int [C, K], K being the most keypoints of any category; further ones stay.

    Raises:
        ConfigError: the point of a side has none on the other.
    """
    most = num_keypoints(categories)
    return [_flips_of(category, most) for category in categories]


def _flips_of(category: Mapping[str, Any], most: int) -> list[int]:
    names = list(category.get("keypoints", ()))
    flips = list(range(most))
    for number, name in enumerate(names):
        other = _SIDE.sub(_with_other_side, name)
        if other not in names:
            raise ConfigError(
                f"train.augment.horizontal_flip: category {category['name']!r} has a keypoint {name!r} but none "
                f"{other!r}, which it is in a mirrored image. Set it to false, or name the keypoints in pairs."
            )
        flips[number] = names.index(other)
    return flips


def _with_other_side(match: re.Match[str]) -> str:
    found = match[0]
    other = _OTHER_SIDE[found.lower()]
    if found.isupper():
        return other.upper()
    return other.capitalize() if found[0].isupper() else other
