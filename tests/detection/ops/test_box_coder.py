from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from detection.ops.box_coder import decode_yxyx, encode_yxyx

Oracles = dict[str, dict[str, Any]]
ANCHOR = np.array([0, 0, 32, 16], np.float32)


def test_encoding(oracles: Oracles) -> None:
    expected = oracles["coder.automl_encode"]["expected"]["unscaled"]
    np.testing.assert_allclose(encode_yxyx(np.array([10, 5, 30, 17], np.float32), ANCHOR), expected, atol=1e-5)


def test_decoding(oracles: Oracles) -> None:
    expected = oracles["coder.automl_decode"]["expected"]
    np.testing.assert_allclose(decode_yxyx(np.array([0.1, -0.2, 0.2, -0.1], np.float32), ANCHOR), expected, atol=1e-3)


_box = st.tuples(st.floats(-50, 50), st.floats(-50, 50), st.floats(1, 100), st.floats(1, 100))


@settings(max_examples=40, deadline=None)
@given(_box, _box)
def test_decoding_inverts_encoding(box: tuple[float, ...], anchor: tuple[float, ...]) -> None:
    def yxyx(values: tuple[float, ...]) -> np.ndarray:
        y, x, height, width = values
        return np.array([y, x, y + height, x + width], np.float32)

    decoded = decode_yxyx(encode_yxyx(yxyx(box), yxyx(anchor)), yxyx(anchor))
    np.testing.assert_allclose(decoded, yxyx(box), atol=1e-2)


def test_an_empty_box_and_a_wild_code_stay_finite() -> None:
    assert np.isfinite(encode_yxyx(np.zeros(4, np.float32), ANCHOR)).all()
    assert np.isfinite(decode_yxyx(np.array([0, 0, 1e4, 1e4], np.float32), ANCHOR)).all()


def test_boxes_without_four_coordinates_are_refused() -> None:
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        encode_yxyx(np.zeros([2, 5], np.float32), ANCHOR)
