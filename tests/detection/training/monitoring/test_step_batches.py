"""Pictures of a batch."""

import numpy as np

from detection.images.drawing import category_color
from detection.input_pipeline.training_batches import Batch, InputOptions
from detection.training.monitoring.step_batches import pictures_of
from detection.types import Labels


def test_pictures_show_keypoints_and_the_skeleton_of_their_class() -> None:
    """In the second of two images; padding is not drawn, and the third point is hidden."""
    points = np.array([[40.0, 60.0, 2.0], [200.0, 220.0, 1.0], [40.0, 220.0, 0.0]], np.float32)  # y, x, visibility
    keypoints = np.zeros((2, 2, 3, 3), np.float32)
    keypoints[1, 0], keypoints[1, 1] = points, points[:, [1, 0, 2]]
    labels = Labels(
        boxes=np.zeros((2, 2, 4), np.float32),
        classes=np.array([[0, 0], [1, 0]], np.int32),
        valid=np.array([[False, False], [True, False]]),
        keypoints=keypoints,
    )
    options = InputOptions(
        image_size=(256, 256),
        mean=(100.0, 100.0, 100.0),
        std=(1.0, 1.0, 1.0),
        category_ids=[7, 3],
        max_instances=2,
        horizontal_flip=False,
        scale_min=1.0,
        scale_max=1.0,
    )
    categories = [{"id": 7, "name": "bar"}, {"id": 3, "name": "", "skeleton": [[1, 2], [1, 3]]}]
    batch = Batch(np.zeros((2, 256, 256, 3), np.float32), labels, np.zeros(2, np.int32))
    empty, drawn = pictures_of(batch, options, categories, 5)
    assert (empty == 100).all()
    assert (drawn[120, 140] == category_color(3)).all()
    assert (drawn[40, 140] == 100).all()
    assert (drawn[220, 220] == 100).all()
