"""The functions of the exported client against TensorFlow's resize and the masks of `predict`.

Whole programs are compared in test_mask_files.py and test_keypoint_files.py (LiteRT), and in test_onnx_model.py.
"""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from pycocotools import mask

from detection.export import client
from detection.images.decode import decode_rgb
from detection.input_pipeline.network_input import fit_pixels
from detection.ops.masks import rle_of_crop
from detection.types import Resizing

PADDING = (124.0, 117.5, 104.0)
RESIZINGS = [
    Resizing((96, 128)),
    Resizing((90, 120), "stretch"),
    Resizing((96, 128), "short_side", short_side=60, long_side=120),
    Resizing((96, 128), "stretch", half_pixel_centers=False),
]


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "RGBA", "LA", "P", "1", "I;16"])
def test_pixels_are_those_that_predict_decodes(mode: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    colors = Image.fromarray(random.integers(0, 256, (40, 30, 4), np.uint8))
    if mode == "I;16":
        image = Image.fromarray(random.integers(0, 2**16, (40, 30), np.uint16))
    elif mode == "CMYK":
        image = Image.frombytes("CMYK", colors.size, colors.tobytes())
    else:
        image = (colors if mode in ("RGBA", "LA") else colors.convert("RGB")).convert(mode)
    path = tmp_path / ("image.jpg" if mode in ("RGB", "L", "CMYK") else "image.png")
    if mode == "P":
        image.info["transparency"] = bytes(range(256))
    image.save(path)
    assert Image.open(path).mode == mode
    found = client.read_image(str(path))
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, decode_rgb(tf.constant(path.read_bytes())))


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize("resizing", RESIZINGS, ids=lambda one: f"{one.mode}-{one.half_pixel_centers}")
def test_the_input_is_the_one_of_predict(resizing: Resizing, dtype: str) -> None:
    description = {
        "input": {"shape": [2, 96, 128, 3], "resize": resizing._asdict(), "padding": PADDING, "dtype": dtype}
    }
    random = np.random.default_rng(0)
    sizes = [(96, 128), (640, 512), (33, 901), (901, 33), (7, 5), (1, 300), *random.integers(1, 400, (20, 2)).tolist()]
    for height, width in sizes:
        image = random.integers(0, 256, (height, width, 3), np.uint8)
        expected, info = fit_pixels(tf.constant(image), image_size=(96, 128), resizing=resizing, padding=PADDING)
        found, size = client.network_input(image, description)
        np.testing.assert_array_equal(size, np.rint(info.original_size * info.scale))
        assert found.shape == (2, 96, 128, 3)
        assert found.dtype == dtype
        np.testing.assert_allclose(
            found[1].astype(float), expected if dtype == "float32" else np.rint(expected), atol=1e-4
        )


def test_masks_are_those_of_predict() -> None:
    """Boxes within, across the border and beyond the image; tiny, empty, and with corners on pixel centers."""
    random = np.random.default_rng(0)
    height, width = 40, 57
    boxes = [[3.5, 4.5, 20.5, 33.5], [-6.2, -3.0, 11.0, 80.0], [5.0, 5.0, 5.0, 9.0], [50.0, 60.0, 70.0, 80.0]]
    low = random.uniform(-5, 40, (60, 2))
    boxes += np.concatenate([low, low + random.exponential(6, (60, 2))], axis=1).tolist()
    inside = 0
    for box in boxes:
        crop = random.uniform(size=(28, 28)).astype(np.float32)
        found = client.paste(crop, np.array(box), height, width)
        ymin, xmin, ymax, xmax = box
        expected = rle_of_crop(crop, np.array([xmin, ymin, xmax - xmin, ymax - ymin]), height=height, width=width)
        assert client.compressed_rle(found) == expected["counts"]
        inside += int(found.sum())
    assert inside > 1000


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.98, 1.0])
def test_rle_is_that_of_pycocotools(share: float) -> None:
    for shape in ((1, 1), (13, 40), (200, 300)):
        pixels = np.random.default_rng(1).random(shape) < share
        expected = mask.encode(np.asfortranarray(pixels, np.uint8))["counts"].decode()
        assert client.compressed_rle(pixels) == expected
