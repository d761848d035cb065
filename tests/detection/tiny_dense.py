"""A dense detector of two blocks and two levels, for what is done with boxes where the network does not matter.

Its graph has a third of the operations of `tiny_run`'s, and its checkpoint a quarter of the variables.
"""

from typing import Any

from detection.models.backbones.efficientnet_spec import BACKBONES, EfficientNetSpec, Stage
from detection.models.detector import Detector
from detection.models.registry import build_detector

NAME, TWO_BLOCKS = "ssd-nano", "two-blocks"
SIDE = 64  # of its input
OVERRIDES: dict[str, Any] = {
    "backbone": {"name": TWO_BLOCKS},
    "min_level": 3,
    "max_level": 4,
    "neck": {"filters": [32]},
}
KEYS = (f"model.name={NAME}", f"model.image_size={SIDE}", f"model.overrides={OVERRIDES}")

BACKBONES[TWO_BLOCKS] = EfficientNetSpec(
    1.0,
    1.0,
    activation="relu",
    stem_filters=8,
    squeeze_excite=False,
    stages=(Stage(1, 3, 2, 1, 16), Stage(1, 3, 2, 2, 24)),
)


def build_tiny_dense(num_classes: int, **fields: Any) -> Detector:
    """Builds the detector; `fields` as of `build_detector`."""
    return build_detector(NAME, num_classes=num_classes, image_size=SIDE, overrides=OVERRIDES, **fields)
