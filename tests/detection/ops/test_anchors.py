from typing import Any

import numpy as np
import pytest

from detection.ops.anchors import feature_sizes, pyramid_anchors_yxyx

Oracles = dict[str, dict[str, Any]]


def _anchors(height: int, width: int, **options: Any) -> np.ndarray:
    settings: dict[str, Any] = {
        "min_level": 3,
        "max_level": 7,
        "num_scales": 3,
        "aspect_ratios": (1.0, 2.0, 0.5),
        "anchor_scale": 4.0,
    }
    return pyramid_anchors_yxyx((height, width), **(settings | options))


def test_feature_sizes_round_up() -> None:
    assert feature_sizes((5, 8), 3) == [(5, 8), (3, 4), (2, 2), (1, 1)]


def test_counts(oracles: Oracles) -> None:
    for size, count in oracles["anchors.count.effdet"]["expected"].items():
        sides = size.split("_", maxsplit=1)[0].split("x")
        max_level = 8 if size.endswith("3_to_8") else 7
        assert len(_anchors(int(sides[0]), int(sides[-1]), max_level=max_level)) == count


def test_coordinates_and_order(oracles: Oracles) -> None:
    expected = oracles["anchors.coords.effdet_128"]["expected"]
    anchors = _anchors(128, 128)
    np.testing.assert_allclose(anchors[:9], expected["first9"], atol=1e-4)
    np.testing.assert_allclose(anchors[-9:], expected["last9"], atol=1e-4)


def test_one_scale_one_ratio(oracles: Oracles) -> None:
    expected = oracles["anchors.normalized.test8"]["expected"]
    anchors = _anchors(8, 8, min_level=1, max_level=2, num_scales=1, aspect_ratios=(1.0,), anchor_scale=1.0) / 8
    assert len(anchors) == expected["count"]
    ymin, xmin, ymax, xmax = anchors[0]
    centre_and_size = [(ymin + ymax) / 2, (xmin + xmax) / 2, ymax - ymin, xmax - xmin]
    np.testing.assert_allclose(centre_and_size, expected["first_cy_cx_h_w"])


def test_an_aspect_ratio_is_width_over_height() -> None:
    anchors = _anchors(64, 64, aspect_ratios=(4.0,), num_scales=1)
    np.testing.assert_allclose(anchors[:, 3] - anchors[:, 1], 4.0 * (anchors[:, 2] - anchors[:, 0]))


def test_rows_come_before_columns_in_an_oblong_image() -> None:
    anchors = _anchors(16, 32, max_level=3, num_scales=1, aspect_ratios=(1.0,))
    centres = (anchors[:, :2] + anchors[:, 2:]) / 2
    np.testing.assert_allclose(centres[:5], [[4, 4], [4, 12], [4, 20], [4, 28], [12, 4]])


@pytest.mark.parametrize(("height", "width"), [(100, 75), (511, 513)])
def test_strides_are_real_so_that_cells_tile_any_image(height: int, width: int) -> None:
    rows, columns = feature_sizes((height, width), 3)[3]
    anchors = _anchors(height, width, max_level=3, num_scales=1, aspect_ratios=(1.0,), anchor_scale=1.0)
    np.testing.assert_allclose(anchors[-1], [height - height / rows, width - width / columns, height, width], rtol=1e-5)
