"""Every colour operation of AutoAugment against Pillow's."""

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from detection.input_pipeline.augmentation import photometric


def _noise(seed: int, shape: tuple[int, int] = (23, 31)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), np.uint8)


def _narrow() -> np.ndarray:
    """Values within 90 to 160, one channel flat."""
    image = _noise(1) // 4 + 90
    image[..., 1] = 77
    return image


def _smooth() -> np.ndarray:
    ramp = np.add.outer(np.arange(90) * 2, np.arange(120)) // 2
    return np.stack([ramp, 255 - ramp, ramp // 3 + 100], axis=-1).astype(np.uint8)


IMAGES = {
    "noise": _noise(0),
    "narrow": _narrow(),
    "smooth": _smooth(),
    "flat": np.full((5, 4, 3), 19, np.uint8),
    "one pixel": np.array([[[1, 2, 3]]], np.uint8),
    "one row": _noise(2, (1, 9)),
    "white": np.full((6, 6, 3), 255, np.uint8),
}
FACTORS = (0.0, 0.1, 0.46, 1.0, 1.54, 1.9, 2.8)


@pytest.fixture(params=IMAGES, name="image")
def _image(request: pytest.FixtureRequest) -> np.ndarray:
    return IMAGES[request.param]


def _assert_same(ours: tf.Tensor, pillow: Image.Image) -> None:
    assert ours.dtype == tf.uint8
    np.testing.assert_array_equal(ours.numpy(), np.asarray(pillow))


def test_autocontrast(image: np.ndarray) -> None:
    _assert_same(photometric.autocontrast(tf.constant(image)), ImageOps.autocontrast(Image.fromarray(image)))


def test_autocontrast_of_every_range() -> None:
    """Truncation must agree for each lowest and highest value, not only for those of a few images."""
    for low in range(0, 255, 11):
        for high in range(low + 1, 256, 13):
            image = np.repeat(np.arange(low, high + 1, dtype=np.uint8)[np.newaxis, :, np.newaxis], 3, axis=-1)
            _assert_same(photometric.autocontrast(tf.constant(image)), ImageOps.autocontrast(Image.fromarray(image)))


def test_equalize(image: np.ndarray) -> None:
    _assert_same(photometric.equalize(tf.constant(image)), ImageOps.equalize(Image.fromarray(image)))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
def test_posterize(image: np.ndarray, bits: int) -> None:
    _assert_same(
        photometric.posterize(tf.constant(image), tf.constant(float(bits))),
        ImageOps.posterize(Image.fromarray(image), bits),
    )


def test_posterize_keeps_at_least_one_bit() -> None:
    image = tf.constant(IMAGES["noise"])
    np.testing.assert_array_equal(
        photometric.posterize(image, tf.constant(0)), photometric.posterize(image, tf.constant(1))
    )


@pytest.mark.parametrize("threshold", [0, 1, 128, 153, 255, 256, 384])
def test_solarize(image: np.ndarray, threshold: int) -> None:
    ours = photometric.solarize(tf.constant(image), tf.constant(float(threshold)))
    _assert_same(ours, ImageOps.solarize(Image.fromarray(image), threshold))


@pytest.mark.parametrize("addition", [0, 22, 110, 165])
def test_solarize_add(image: np.ndarray, addition: int) -> None:
    expected = np.where(image < 128, np.clip(image.astype(int) + addition, 0, 255), image)
    ours = photometric.solarize_add(tf.constant(image), tf.constant(float(addition)))
    np.testing.assert_array_equal(ours.numpy(), expected)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(
    ("ours", "pillow"),
    [
        (photometric.color, ImageEnhance.Color),
        (photometric.contrast, ImageEnhance.Contrast),
        (photometric.brightness, ImageEnhance.Brightness),
        (photometric.sharpness, ImageEnhance.Sharpness),
    ],
    ids=["color", "contrast", "brightness", "sharpness"],
)
def test_enhancements(
    image: np.ndarray, ours: Callable[..., tf.Tensor], pillow: Callable[..., ImageEnhance._Enhance], factor: float
) -> None:
    _assert_same(ours(tf.constant(image), tf.constant(factor)), pillow(Image.fromarray(image)).enhance(factor))
