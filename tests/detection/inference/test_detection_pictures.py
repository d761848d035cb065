"""Pictures of results with keypoints."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from detection.images.drawing import category_color
from detection.inference.detection_pictures import DetectionPictures
from detection.inference.results import Results
from detection.types import EncodedImage


@pytest.mark.parametrize(("skeleton", "connected"), [([[1, 2], [1, 3]], True), ([[1, 9]], False), ("none", False)])
def test_the_skeleton_of_the_model_s_category(tmp_path: Path, skeleton: Any, connected: bool) -> None:
    """The third point has a score of 0; a category that the model does not name has no skeleton."""
    stream = io.BytesIO()
    Image.new("RGB", (200, 100), (90, 90, 90)).save(stream, "PNG")
    rows = np.array([[1, 0, 0, 2, 2, 0.9, 3], [1, 0, 0, 2, 2, 0.8, 4]])
    points = np.array([[[20.0, 50.0, 0.5], [160.0, 50.0, 0.1], [20.0, 95.0, 0.0]]])
    categories = [{"id": 3, "name": "hand", "skeleton": skeleton}]
    pictures = DetectionPictures(tmp_path / "drawn", ["a.png"], categories=categories, min_score=0.3)
    keypoints = np.concatenate([points, points + np.array([0.0, 20.0, 0.0])])
    pictures.add(EncodedImage(1, "a.png", stream.getvalue(), 100, 200), Results(rows, keypoints=keypoints))
    with Image.open(tmp_path / "drawn" / "a.png") as drawn:
        pixels = np.asarray(drawn)
    assert (pixels[50, 20] == category_color(3)).all()
    assert ((pixels[50, 40:140] == category_color(3)).all(), (pixels[50, 40:140] == 90).all()) == (
        connected,
        not connected,
    )
    assert (pixels[70, 40:140] == 90).all()
    assert (pixels[60:90, 20] == 90).any(-1).sum() > 15
