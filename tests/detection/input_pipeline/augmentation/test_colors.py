"""Each amount by itself: what it does, by another library's arithmetic, and how it is distributed."""

import colorsys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps

from detection.input_pipeline.augmentation import colors
from detection.input_pipeline.augmentation.colors import random_color_jitter
from detection.input_pipeline.sample import Sample
from tests.detection.input_pipeline.augmentation.coordinate_images import assert_equal, coordinate_sample


def _image() -> np.ndarray:
    """Mild colours: no amount within the defaults drives a value out of range."""
    return np.random.default_rng(0).integers(100, 156, (12, 9, 3), np.uint8)


def _jittered(number: int, **amounts: Any) -> np.ndarray:
    sample = Sample(tf.constant(_image()), tf.zeros([0, 4]), tf.zeros([0], tf.int32))
    return random_color_jitter(sample, **amounts, seed=tf.constant([number, 2])).image.numpy().astype(float)


def _assert_uniform(draws: list[float], low: float, high: float) -> None:
    """All within the range and up to its ends, with the mean and spread of a uniform distribution."""
    values = (np.array(draws) - low) / (high - low)
    assert -0.02 < values.min() < 0.05
    assert 0.95 < values.max() < 1.02
    assert abs(values.mean() - 0.5) < 4 * 0.289 / np.sqrt(len(draws))
    assert abs(values.std() - 0.289) < 0.06


def test_brightness_adds_one_value_to_all() -> None:
    amounts = []
    for number in range(100):
        difference = _jittered(number, brightness=0.2) - _image()
        assert np.ptp(difference) <= 1  # rounding
        amounts.append(difference.mean() / 255)
    _assert_uniform(amounts, -0.2, 0.2)


def test_contrast_scales_the_distance_to_each_channels_mean() -> None:
    centred, factors = _image() - _image().mean((0, 1)), []
    for number in range(100):
        jittered = _jittered(number, contrast=(0.8, 1.25))
        factor = (jittered * centred).sum() / (centred**2).sum()
        # Half a value for the rounding, and half for what rounding does to the factor found.
        np.testing.assert_allclose(jittered, _image().mean((0, 1)) + factor * centred, atol=1.0)
        factors.append(factor)
    _assert_uniform(factors, 0.8, 1.25)


def _hsv(image: np.ndarray) -> np.ndarray:
    return np.array([colorsys.rgb_to_hsv(*pixel) for pixel in image.reshape(-1, 3) / 255])


def test_saturation_scales_the_s_of_hsv() -> None:
    before, factors = _hsv(_image()), []
    for number in range(100):
        jittered = _jittered(number, saturation=(0.8, 1.25))
        factor = (_hsv(jittered)[:, 1] * before[:, 1]).sum() / (before[:, 1] ** 2).sum()
        expected = [colorsys.hsv_to_rgb(h, s * factor, v) for h, s, v in before]
        np.testing.assert_allclose(jittered.reshape(-1, 3), 255 * np.array(expected), atol=1.0)
        factors.append(factor)
    _assert_uniform(factors, 0.8, 1.25)


def test_hue_turns_the_colour_circle() -> None:
    """Strong colours and a large turn, so that it can be measured."""
    before, turns = _hsv(_image()), []
    vivid = before[:, 1] > 0.15
    for number in range(100):
        after = _jittered(number, hue=0.3)
        turn = (_hsv(after)[vivid, 0] - before[vivid, 0] + 0.5) % 1 - 0.5
        median = float(np.median(turn))
        expected = [colorsys.hsv_to_rgb((h + median) % 1, s, v) for h, s, v in before]
        np.testing.assert_allclose(after.reshape(-1, 3), 255 * np.array(expected), atol=1.5)
        turns.append(median)
    _assert_uniform(turns, -0.3, 0.3)


def test_gray_comes_as_often_as_said() -> None:
    images = [_jittered(number, gray_probability=0.3) for number in range(200)]
    gray = [image for image in images if (image == image[..., :1]).all()]
    assert abs(len(gray) / 200 - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 200)
    np.testing.assert_allclose(gray[0][..., 0], _image() @ [0.2989, 0.587, 0.114], atol=0.6)
    assert sum(np.array_equal(image, _image()) for image in images) == 200 - len(gray)


def test_amounts_are_drawn_apart() -> None:
    """Over many seeds, brightness and contrast are not correlated."""
    pairs = []
    for number in range(150):
        image = _jittered(number, brightness=0.1, contrast=(0.8, 1.25))
        pairs.append((image.mean(), image.std()))
    assert abs(np.corrcoef(np.transpose(pairs))[0, 1]) < 0.35


@pytest.mark.usefixtures("op_determinism")
def test_values_stay_in_range_and_all_else_stays() -> None:
    sample = coordinate_sample(20, 30, [(3, 4, 12, 20)], crowds=[True])
    extreme = tf.constant(np.array([[[0, 0, 0], [255, 255, 255], [255, 0, 0], [1, 254, 3]]], np.uint8))
    for number in range(20):
        amounts: dict[str, Any] = {"brightness": 0.2, "contrast": (0.8, 1.25), "hue": 0.02, "gray_probability": 0.1}
        jittered = random_color_jitter(sample, **amounts, seed=tf.constant([number, 0]))
        assert jittered.image.dtype == tf.uint8
        assert_equal(jittered._replace(image=sample.image), sample)
        assert_equal(jittered, random_color_jitter(sample, **amounts, seed=tf.constant([number, 0])))
        bright = random_color_jitter(sample._replace(image=extreme), brightness=0.5, seed=tf.constant([number, 0]))
        # Clipped, not wrapped around: white is at least as bright as black.
        assert (bright.image[0, 1].numpy() >= bright.image[0, 0].numpy()).all()


def test_no_amounts_change_nothing() -> None:
    np.testing.assert_array_equal(_jittered(0), _image())


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
def _noisy_image(request: pytest.FixtureRequest) -> np.ndarray:
    return IMAGES[request.param]


def _assert_same(ours: tf.Tensor, pillow: Image.Image) -> None:
    assert ours.dtype == tf.uint8
    np.testing.assert_array_equal(ours.numpy(), np.asarray(pillow))


def test_autocontrast(image: np.ndarray) -> None:
    _assert_same(colors.autocontrast(tf.constant(image)), ImageOps.autocontrast(Image.fromarray(image)))


def test_autocontrast_of_every_range() -> None:
    """Truncation must agree for each lowest and highest value, not only for those of a few images."""
    for low in range(0, 255, 11):
        for high in range(low + 1, 256, 13):
            image = np.repeat(np.arange(low, high + 1, dtype=np.uint8)[np.newaxis, :, np.newaxis], 3, axis=-1)
            _assert_same(colors.autocontrast(tf.constant(image)), ImageOps.autocontrast(Image.fromarray(image)))


def test_equalize(image: np.ndarray) -> None:
    _assert_same(colors.equalize(tf.constant(image)), ImageOps.equalize(Image.fromarray(image)))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
def test_posterize(image: np.ndarray, bits: int) -> None:
    _assert_same(
        colors.posterize(tf.constant(image), tf.constant(float(bits))), ImageOps.posterize(Image.fromarray(image), bits)
    )


def test_posterize_keeps_at_least_one_bit() -> None:
    image = tf.constant(IMAGES["noise"])
    np.testing.assert_array_equal(colors.posterize(image, tf.constant(0)), colors.posterize(image, tf.constant(1)))


@pytest.mark.parametrize("threshold", [0, 1, 128, 153, 255, 256, 384])
def test_solarize(image: np.ndarray, threshold: int) -> None:
    ours = colors.solarize(tf.constant(image), tf.constant(float(threshold)))
    _assert_same(ours, ImageOps.solarize(Image.fromarray(image), threshold))


@pytest.mark.parametrize("addition", [0, 22, 110, 165])
def test_solarize_add(image: np.ndarray, addition: int) -> None:
    expected = np.where(image < 128, np.clip(image.astype(int) + addition, 0, 255), image)
    ours = colors.solarize_add(tf.constant(image), tf.constant(float(addition)))
    np.testing.assert_array_equal(ours.numpy(), expected)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(
    ("ours", "pillow"),
    [
        (colors.color, ImageEnhance.Color),
        (colors.contrast, ImageEnhance.Contrast),
        (colors.brightness, ImageEnhance.Brightness),
        (colors.sharpness, ImageEnhance.Sharpness),
    ],
    ids=["color", "contrast", "brightness", "sharpness"],
)
def test_enhancements(
    image: np.ndarray, ours: Callable[..., tf.Tensor], pillow: Callable[..., ImageEnhance._Enhance], factor: float
) -> None:
    _assert_same(ours(tf.constant(image), tf.constant(factor)), pillow(Image.fromarray(image)).enhance(factor))
