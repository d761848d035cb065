"""Dense detectors with an FPN: the layers of the heads are the same for all levels."""

from dataclasses import replace

import tensorflow as tf

from detection.models.dense.config import SharedHeadsConfig
from detection.models.dense.detector import DenseDetector
from detection.models.heads.dense import DenseHead

_FIRST_BRANCHES = {"class": 1000, "box": 2000}  # indices of the heads' drop-connect branches, above the blocks' indices


class SharedHeadsDetector(DenseDetector):
    """A dense detector with the same class and box head for all levels; see `DenseDetector`."""

    config: SharedHeadsConfig

    def make_head(self, prefix: str, *, outputs: int, output_bias: float) -> DenseHead:
        """See `DenseDetector.make_head`."""
        options = self.config.head_options(self.dtype_policy)
        return DenseHead(
            replace(options, num_layers=0) if self.config.share_tower and prefix == "box" else options,
            prefix=prefix,
            outputs=self.config.anchors_per_cell * outputs,
            output_bias=output_bias,
            first_branch=_FIRST_BRANCHES[prefix],
        )

    def call_heads(self, features: list[tf.Tensor], training: bool, seed: tf.Tensor | None) -> list[list[tf.Tensor]]:
        """See `DenseDetector.call_heads`."""
        if not self.config.share_tower:
            return super().call_heads(features, training, seed)
        features = self.class_net.tower(features, training=training, seed=seed)
        return [[net.predict(feature) for feature in features] for net in (self.class_net, self.box_net)]
