"""A detector of each family, to test them all."""

import math

from detection.models.registry import FAMILIES


def smallest_detectors() -> tuple[str, ...]:
    """Returns each family's detector with the smallest input; later families are those that tests registered."""
    return tuple(
        min(family.presets, key=lambda name: math.prod(family.presets[name].image_size)) for family in FAMILIES
    )
