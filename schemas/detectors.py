"""Names of the detectors, to check `model.name` before TensorFlow is loaded."""

import difflib
from collections.abc import Sequence

from schemas.errors import ConfigError

# Detectors of `detection.models.registry`.
DETECTORS: tuple[str, ...] = (
    *(f"efficientdet-{size}" for size in ("nano", "d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d7x")),
    *(f"efficientdet-lite{size}" for size in ("0", "1", "2", "3", "3x", "4")),
    *("ssd-mobilenet-v1-fpn", "ssd-mobilenet-v2-fpnlite", "ssd-mobilenet-v1", "ssd-mobilenet-v2", "ssd-nano"),
    *(f"retinanet-{size}" for size in ("nano", "r18", "r34", "r50", "r101", "r152")),
    *(
        f"{family}-rcnn-{size}"
        for family in ("faster", "mask")
        for size in ("nano", "r18", "r34", "r50", "r101", "r152")
    ),
    *(
        f"centernet-{size}{suffix}"
        for suffix in ("", "-kpts")
        for size in ("r18", "r34", "r50", "r101", "r50-v2", "r101-v2", "mobilenet-v2", "nano")
    ),
    *(f"centernet-hourglass-{depth}{suffix}" for suffix in ("", "-kpts") for depth in (10, 20, 32, 52, 104)),
    *(f"faster-rcnn-r{depth}-c4" for depth in (50, 101, 152)),
    *(f"dfine-{size}" for size in ("pico", "n", "s", "m", "l", "x")),
)
_NEAR = 0.5  # min similarity (difflib) of a misspelled name


def require_detector(name: str, *, key: str = "model.name") -> None:
    """Requires the name of a detector.

    Raises:
        ConfigError: unknown detector; the message has the nearest name or all names.
    """
    if name not in DETECTORS:
        raise ConfigError(f"{key} = {name!r}: no such detector. {nearest_or_all(name, DETECTORS)}")


def nearest_or_all(name: str, known: Sequence[str]) -> str:
    """Returns a sentence with the most similar known name, or with all names if none is similar.

    >>> nearest_or_all("efficientdet-d00", ["efficientdet-d0", "mask-rcnn-r50"])
    'The nearest is efficientdet-d0.'
    >>> nearest_or_all("yolov8", ["efficientdet-d0", "mask-rcnn-r50"])
    'There are: efficientdet-d0, mask-rcnn-r50.'
    """
    near = difflib.get_close_matches(name, known, 1, _NEAR)
    return f"The nearest is {near[0]}." if near else f"There are: {', '.join(known)}."
