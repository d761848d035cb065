from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.inference.serving_sample import (
    read_serving_sample,
    served_images,
    serving_sample_bytes,
    write_serving_sample,
)
from detection.types import EncodedImage
from schemas.errors import DataError

IMAGES = [EncodedImage(7, "b/ä.png", b"first", 4, 6), EncodedImage(3, "c.png", b"second image", 5, 5)]


def outputs(masks: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "detection_boxes": rng.random((2, 3, 4), np.float32),
        "detection_scores": rng.random((2, 3), np.float32),
        "detection_classes": np.array([[9, 8, 0], [7, 0, 0]], np.int64),
        "num_detections": np.array([2, 0], np.int32),
        "detection_masks": masks,
    }


def test_valid_rows_come_back_as_they_were(tmp_path: Path) -> None:
    given = outputs(np.ones((2, 3, 28, 28), np.float32))
    write_serving_sample(tmp_path / "sample.npz", served_images(given, IMAGES))
    first, second = read_serving_sample(tmp_path / "sample.npz")
    assert (first.image_id, first.name, first.encoded) == (7, "b/ä.png", b"first")
    assert (second.image_id, second.encoded) == (3, b"second image")
    for name in set(given) - {"num_detections"}:
        np.testing.assert_array_equal(first.outputs[name], given[name][0, :2])
        assert first.outputs[name].dtype == given[name].dtype
        assert len(second.outputs[name]) == 0
    assert set(first.outputs) == set(given) - {"num_detections"}


def test_pasted_masks_have_the_size_of_their_image() -> None:
    first, second = served_images(outputs(np.ones((2, 3, 5, 6), np.uint8)), IMAGES)
    assert first.outputs["detection_masks"].shape == (2, 4, 6)
    assert second.outputs["detection_masks"].shape == (0, 5, 5)


def test_rle_is_kept_as_text(tmp_path: Path) -> None:
    given = outputs(np.array([[b"abc", b"d0", b""], [b"", b"", b""]], object))
    write_serving_sample(tmp_path / "sample.npz", served_images(given, IMAGES))
    first, second = read_serving_sample(tmp_path / "sample.npz")
    assert first.outputs["detection_masks"].tolist() == [b"abc", b"d0"]
    assert second.outputs["detection_masks"].tolist() == []


def test_the_same_images_give_the_same_bytes() -> None:
    contents = {serving_sample_bytes(served_images(outputs(np.zeros((2, 3, 28, 28))), IMAGES)) for _ in range(2)}
    assert len(contents) == 1


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sample.npz").write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match=r"sample\.npz: not a sample of served images"):
        read_serving_sample(tmp_path / "sample.npz")
    np.savez(tmp_path / "sample.npz", a=np.zeros(3))
    with pytest.raises(DataError, match=r"sample\.npz: not a sample of served images"):
        read_serving_sample(tmp_path / "sample.npz")
