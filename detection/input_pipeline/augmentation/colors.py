"""Colour augmentations: random jitter, and the colour operations of AutoAugment.

The operations map uint8 [H, W, 3] to uint8 [H, W, 3]; pixels keep their positions.  The results
equal those of Pillow's ImageOps or ImageEnhance bit for bit (tested against Pillow), as
AutoAugment intended.  AutoAugment's TensorFlow code differs in `contrast`: it blends with the
number of pixels / 256, which is white for any image of more than 65,280 pixels, instead of the
mean grey.
"""

import tensorflow as tf

from detection.input_pipeline.sample import Sample


def autocontrast(image: tf.Tensor) -> tf.Tensor:
    """Stretches each channel to 0 to 255; constant channels do not change."""
    low, high = (tf.cast(reduce(image, axis=[0, 1]), tf.float64) for reduce in (tf.reduce_min, tf.reduce_max))
    scale = 255.0 / tf.maximum(high - low, 1.0)
    values = tf.range(256, dtype=tf.float64)[tf.newaxis]
    stretched = tf.clip_by_value(values * scale[:, tf.newaxis] + (-low * scale)[:, tf.newaxis], 0.0, 255.0)
    return _look_up(image, tf.where((high > low)[:, tf.newaxis], stretched, values))


def equalize(image: tf.Tensor) -> tf.Tensor:
    """Equalizes each channel's histogram; channels with too few values do not change."""
    histogram = tf.math.bincount(_channel_values(image), minlength=768, maxlength=768)
    histogram = tf.reshape(histogram, [3, 256])
    last = tf.reduce_max(tf.cast(image, tf.int32), axis=[0, 1])
    total = tf.reduce_sum(histogram, axis=1)
    step = (total - tf.gather(histogram, last, axis=1, batch_dims=1)) // 255
    below = tf.cumsum(histogram, axis=1, exclusive=True)
    spread = (below + (step // 2)[:, tf.newaxis]) // tf.maximum(step, 1)[:, tf.newaxis]
    values = tf.range(256)[tf.newaxis]
    return _look_up(image, tf.where((step > 0)[:, tf.newaxis], tf.minimum(spread, 255), values))


def posterize(image: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Keeps the `bits` highest bits of every value; 0 means 1, as in the original."""
    dropped = 8 - tf.clip_by_value(tf.cast(bits, tf.int32), 1, 8)
    mask = 256 - tf.bitwise.left_shift(1, dropped)
    return tf.bitwise.bitwise_and(image, tf.cast(mask, tf.uint8))


def solarize(image: tf.Tensor, threshold: tf.Tensor) -> tf.Tensor:
    """Inverts the values at or above `threshold`; none if it is above 255."""
    return tf.where(tf.cast(image, tf.int32) < tf.cast(threshold, tf.int32), image, 255 - image)


def solarize_add(image: tf.Tensor, addition: tf.Tensor) -> tf.Tensor:
    """Adds `addition` to the values below 128, up to 255."""
    values = tf.cast(image, tf.int32)
    brighter = tf.clip_by_value(values + tf.cast(addition, tf.int32), 0, 255)
    return tf.cast(tf.where(values < 128, brighter, values), tf.uint8)


def color(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Changes the saturation: 0 is grey, 1 the image, larger factors more saturated."""
    return _blend(_gray(image), image, factor)


def contrast(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Changes the contrast: 0 is the image's mean grey, 1 the image."""
    gray = _gray(image)
    count = tf.size(gray, out_type=tf.int64)
    rounded_mean = (2 * tf.reduce_sum(tf.cast(gray, tf.int64)) + count) // (2 * count)
    return _blend(rounded_mean, image, factor)


def brightness(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Changes the brightness: 0 is black, 1 the image."""
    return _blend(tf.constant(0), image, factor)


def sharpness(image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Sharpens: 0 is the image smoothed with [[1, 1, 1], [1, 5, 1], [1, 1, 1]] / 13, 1 the image; keeps the border."""
    values = tf.cast(image, tf.int32)
    padded = tf.pad(values, [[1, 1], [1, 1], [0, 0]], mode="SYMMETRIC")
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    weighted = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4 * values
    height, width = tf.shape(image)[0], tf.shape(image)[1]
    inner_rows = (tf.range(height) > 0) & (tf.range(height) < height - 1)
    inner_columns = (tf.range(width) > 0) & (tf.range(width) < width - 1)
    inner = inner_rows[:, tf.newaxis, tf.newaxis] & inner_columns[:, tf.newaxis]
    # + 6 before dividing by 13 rounds to the nearest integer.
    return _blend(tf.where(inner, (weighted + 6) // 13, values), image, factor)


def _gray(image: tf.Tensor) -> tf.Tensor:
    # ITU-R 601-2 luma in 16-bit fixed point, Pillow's convert("L"): float32 [H, W, 1].
    # All values are integers below 2^24, so float32, which is faster, is exact.
    weighted = tf.linalg.matvec(tf.cast(image, tf.float32), tf.constant([19595.0, 38470.0, 7471.0]))
    return tf.floor((weighted[..., tf.newaxis] + 32768.0) / 65536.0)


def _blend(degenerate: tf.Tensor, image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    degenerate, image = tf.cast(degenerate, tf.float32), tf.cast(image, tf.float32)
    blended = degenerate + tf.cast(factor, tf.float32) * (image - degenerate)
    return tf.cast(tf.clip_by_value(blended, 0.0, 255.0), tf.uint8)


def _channel_values(image: tf.Tensor) -> tf.Tensor:
    # int32 [H, W, 3]: a separate range of values for each channel.
    return tf.cast(image, tf.int32) + tf.constant([0, 256, 512])


def _look_up(image: tf.Tensor, tables: tf.Tensor) -> tf.Tensor:
    # tables: [3, 256], any number type, values 0 to 255.
    return tf.gather(tf.reshape(tf.cast(tables, tf.uint8), [768]), _channel_values(image))


def random_color_jitter(
    sample: Sample,
    *,
    brightness: float = 0.0,
    contrast: tuple[float, float] = (1.0, 1.0),
    saturation: tuple[float, float] = (1.0, 1.0),
    hue: float = 0.0,
    gray_probability: float = 0.0,
    contrast_second: bool = False,
    seed: tf.Tensor,
) -> Sample:
    """Changes the image's colours; each amount is drawn uniformly and independently.

    Source: the TF Object Detection API's random_adjust_* and random_rgb_to_gray, in the order of its
    random_distort_color: brightness, saturation, hue, contrast, each clipped to 0 to 255; grey last.  Values are
    rounded once, at the end.

    Args:
        sample: only its image changes.
        brightness: max change, as a fraction of 255; 0: none.
        contrast: range of the factor on the distance to each channel's mean; (1, 1): none.
        saturation: range of the factor on the saturation (HSV); (1, 1): none.
        hue: max rotation, as a fraction of the colour circle, 0 to 0.5; 0: none.
        gray_probability: probability of a greyscale image; 0: never.
        contrast_second: change the contrast after the brightness; False: after the hue.
        seed: int32 [2].

    Returns:
        The sample with a new image, uint8 [H, W, 3].
    """
    seeds = tf.unstack(tf.random.split(seed, 5))
    image = tf.cast(sample.image, tf.float32) / 255.0
    if brightness:
        image = _clip(image + _uniform(-brightness, brightness, seeds[0]))
    if contrast_second:
        image = _jitter_contrast(image, contrast, seeds[3])
    if saturation != (1.0, 1.0):
        image = _clip(tf.image.adjust_saturation(image, _uniform(*saturation, seeds[1])))
    if hue:
        image = _clip(tf.image.adjust_hue(image, _uniform(-hue, hue, seeds[2])))
    if not contrast_second:
        image = _jitter_contrast(image, contrast, seeds[3])
    if gray_probability:
        gray = tf.random.stateless_uniform([], seeds[4]) < gray_probability
        image = tf.cond(gray, lambda: tf.repeat(tf.image.rgb_to_grayscale(image), 3, axis=-1), lambda: image)
    return sample._replace(image=_to_pixels(image))


def random_pixel_value_scale(sample: Sample, *, minval: float = 0.9, maxval: float = 1.1, seed: tf.Tensor) -> Sample:
    """Multiplies each value by a factor, drawn uniformly for each pixel and channel."""
    factors = tf.random.stateless_uniform(tf.shape(sample.image), seed, minval, maxval)
    return sample._replace(image=_to_pixels(_clip(tf.cast(sample.image, tf.float32) / 255.0 * factors)))


def adjust_gamma(sample: Sample, *, gamma: float = 1.0, gain: float = 1.0, seed: tf.Tensor) -> Sample:
    """Computes gain * value^gamma of values as fractions of 255; nothing is drawn from `seed`."""
    values = tf.cast(sample.image, tf.float32) / 255.0
    return sample._replace(image=_to_pixels(_clip(gain * values**gamma)))


def random_jpeg_quality(
    sample: Sample, *, min_jpeg_quality: int = 0, max_jpeg_quality: int = 100, seed: tf.Tensor
) -> Sample:
    """Encodes and decodes the image as JPEG; the quality is drawn from both limits and all integers between."""
    quality = tf.random.stateless_uniform([], seed, min_jpeg_quality, max_jpeg_quality + 1, tf.int32)
    return sample._replace(image=tf.ensure_shape(tf.image.adjust_jpeg_quality(sample.image, quality), [None, None, 3]))


def _to_pixels(image: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(image * 255.0), tf.uint8)


def _jitter_contrast(image: tf.Tensor, contrast: tuple[float, float], seed: tf.Tensor) -> tf.Tensor:
    if contrast == (1.0, 1.0):
        return image
    return _clip(tf.image.adjust_contrast(image, _uniform(*contrast, seed)))


def _uniform(low: float, high: float, seed: tf.Tensor) -> tf.Tensor:
    return low + (high - low) * tf.random.stateless_uniform([], seed)


def _clip(image: tf.Tensor) -> tf.Tensor:
    return tf.clip_by_value(image, 0.0, 1.0)
