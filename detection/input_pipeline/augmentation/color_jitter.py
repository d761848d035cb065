"""Random brightness, contrast, saturation, hue and grey."""

import tensorflow as tf

from detection.input_pipeline.sample import Sample


def random_color_jitter(
    sample: Sample,
    *,
    brightness: float = 0.2,
    contrast: tuple[float, float] = (0.8, 1.25),
    saturation: tuple[float, float] = (0.8, 1.25),
    hue: float = 0.02,
    gray_probability: float = 0.1,
    seed: tf.Tensor,
) -> Sample:
    """Changes the image's colours; each amount is drawn uniformly from its range, by itself.

    Source: the TF Object Detection API's random_adjust_* and random_rgb_to_gray with
    their defaults, in the order of its random_distort_color: brightness, saturation,
    hue, contrast, each clipped to 0 to 255; grey last.  Values are rounded once, at
    the end.

    Args:
        sample: only its image changes.
        brightness: largest amount, as a part of 255, that is added or taken; 0 for none.
        contrast: range of the factor on the distance to each channel's mean; (1, 1) for none.
        saturation: range of the factor on the saturation (HSV); (1, 1) for none.
        hue: largest turn, as a part of the colour circle, 0 to 0.5; 0 for none.
        gray_probability: how often the colours are taken away; 0 for never.
        seed: int32 [2].

    Returns:
        The sample with a new image, uint8 [H, W, 3].
    """
    seeds = tf.unstack(tf.random.split(seed, 5))
    image = tf.cast(sample.image, tf.float32) / 255.0
    if brightness:
        image = _clip(image + _uniform(-brightness, brightness, seeds[0]))
    if saturation != (1.0, 1.0):
        image = _clip(tf.image.adjust_saturation(image, _uniform(*saturation, seeds[1])))
    if hue:
        image = _clip(tf.image.adjust_hue(image, _uniform(-hue, hue, seeds[2])))
    if contrast != (1.0, 1.0):
        image = _clip(tf.image.adjust_contrast(image, _uniform(*contrast, seeds[3])))
    if gray_probability:
        gray = tf.random.stateless_uniform([], seeds[4]) < gray_probability
        image = tf.cond(gray, lambda: tf.repeat(tf.image.rgb_to_grayscale(image), 3, axis=-1), lambda: image)
    return sample._replace(image=tf.cast(tf.round(image * 255.0), tf.uint8))


def _uniform(low: float, high: float, seed: tf.Tensor) -> tf.Tensor:
    return low + (high - low) * tf.random.stateless_uniform([], seed)


def _clip(image: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(image, 0.0, 1.0)
