"""The vision library, independent of TFX, Beam and KFP."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from detection.inference.load import LoadedDetector

__all__ = ["load_detector"]


def load_detector(
    model: "str | Path", *, weights: Literal["auto", "raw", "ema"] = "auto", batch_size: int = 1
) -> "LoadedDetector":
    """Loads a detector to detect objects in images.

    Args:
        model: the name of a published detector, such as `efficientdet-d0`, whose COCO weights are downloaded once;
            or a local or remote path: the output of `train`, a checkpoint, an imported model, a SavedModel, a LiteRT
            or ONNX export, a push directory, or a `run.root` (its newest pushed version).
        weights: `ema`, `raw`, or `auto`: the weights that the training exports.
        batch_size: images per call of the model in `predict`, unless it was exported with a fixed number.

    Returns:
        The detector.  `predict(image)` gives detections, `draw(image, detections)` a picture of them.  For a trained
        or imported model, `detector(images)` runs the network: it takes float32 [B, H, W, 3], RGB,
        (pixel - `pixel_mean`) / `pixel_std`, of any size, and returns the raw outputs by name.  For EfficientDet:
        `class_p3` to `class_p7` float32 [B, h, w, 9 * C], logits; `box_p3` to `box_p7` float32
        [B, h, w, 9 * 4], encoded boxes; anchor by anchor.  For Faster and Mask R-CNN: `rpn_score_p2`
        to `rpn_score_p6` and `rpn_box_p2` to `rpn_box_p6`; the other heads need proposals.

    Raises:
        DataError: the model cannot be loaded or downloaded.
        ConfigError: the runtime of ONNX is not installed.
    """
    from detection.inference.load import load

    return load(model, weights=weights, batch_size=batch_size)
