"""The vision library, independent of TFX, Beam and KFP."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from detection.inference.load import LoadedDetector

__all__ = ["load_detector"]


def load_detector(path: "str | Path", *, weights: Literal["auto", "raw", "ema"] = "auto") -> "LoadedDetector":
    """Loads a trained or imported detector as a function of normalized images.

    Args:
        path: local or remote model: the output of `train`, a checkpoint, a SavedModel of ours, or an
            imported model; see `detection.inference.restore.load_trained`.
        weights: `ema`, `raw`, or `auto`: the weights that the training exports.

    Returns:
        The network.  `model(images)` takes float32 [B, H, W, 3], RGB, (pixel - `model.pixel_mean`) /
        `model.pixel_std`, of any size, and returns the raw outputs by name.  For EfficientDet:
        `class_p3` to `class_p7` float32 [B, h, w, 9 * C], logits; `box_p3` to `box_p7` float32
        [B, h, w, 9 * 4], encoded boxes; anchor by anchor.  For Faster and Mask R-CNN: `rpn_score_p2`
        to `rpn_score_p6` and `rpn_box_p2` to `rpn_box_p6`; the other heads need proposals.

    Raises:
        DataError: the model cannot be loaded; see `detection.inference.restore.load_trained`.
    """
    from detection.inference.load import LoadedDetector
    from detection.inference.restore import load_trained

    return LoadedDetector(load_trained(path, weights=weights))
