"""A dense detector of two blocks and two levels, for what is done with boxes where the network does not matter.

Its graph has a third of the operations of `tiny_run`'s, and its checkpoint a quarter of the variables.
"""

from typing import Any

from detection.models.backbones.efficientnet_spec import BACKBONES, EfficientNetSpec, Stage

TWO_BLOCKS = "two-blocks"
SIDE = 64  # of its input
OVERRIDES: dict[str, Any] = {
    "backbone": {"name": TWO_BLOCKS},
    "min_level": 3,
    "max_level": 4,
    "neck": {"filters": [32]},
}
KEYS = ("model.name=ssd-nano", f"model.image_size={SIDE}", f"model.overrides={OVERRIDES}")

BACKBONES[TWO_BLOCKS] = EfficientNetSpec(
    1.0,
    1.0,
    activation="relu",
    stem_filters=8,
    squeeze_excite=False,
    stages=(Stage(1, 3, 2, 1, 16), Stage(1, 3, 2, 2, 24)),
)
