from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pycocotools import mask as rle_masks
from pycocotools.coco import COCO

from detection.datasets.masks import compressed_rle, decode_counts, mask_box, mask_issue

_MASKS = arrays(np.uint8, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.integers(0, 1))


@given(mask=_MASKS)
def test_an_rle_of_pycocotools_is_valid_and_has_its_box(mask: np.ndarray) -> None:
    rle = rle_masks.encode(np.asfortranarray(mask))
    height, width = mask.shape
    compressed = {"size": [height, width], "counts": rle["counts"].decode()}
    runs = np.diff(np.flatnonzero(np.diff(mask.T.ravel(), prepend=1 - mask[0, 0], append=2)))
    plain = {"size": [height, width], "counts": ([0] if mask[0, 0] else []) + runs.tolist()}
    assert decode_counts(compressed["counts"]) == plain["counts"]
    for segmentation in (compressed, plain):
        assert mask_issue(segmentation, height=height, width=width) is None
        box = rle_masks.toBbox(rle).tolist()
        assert mask_box(segmentation) == (box if mask.any() else None)


@given(text=st.text(st.characters(min_codepoint=40, max_codepoint=115), max_size=30))
def test_whatever_text_is_no_mask_is_refused_and_the_rest_decodes(text: str) -> None:
    rle = {"size": [7, 9], "counts": text}
    if mask_issue(rle, height=7, width=9) is None:
        assert rle_masks.decode(rle).shape == (7, 9)


def test_large_runs_decode() -> None:
    rle = rle_masks.encode(np.asfortranarray(np.pad(np.ones((1000, 900), np.uint8), 50)))
    assert sum(decode_counts(rle["counts"].decode())) == 1100 * 1000


@pytest.mark.parametrize("counts", ["o", "o" * 20])
def test_a_run_that_does_not_end_is_refused(counts: str) -> None:
    with pytest.raises(ValueError, match=r"the last run is truncated|a run is too long"):
        decode_counts(counts)


def test_the_box_of_polygons() -> None:
    assert mask_box([[1, 9, 4, 2.5, 3, 5], [0, 3, 2, 3, 2, 4]]) == [0, 2.5, 4, 6.5]
    assert mask_box([]) is None


@pytest.mark.parametrize(
    "segmentation",
    [
        [[1, 1, 6, 1, 6, 4], [0, 0, 3, 0, 3, 3, 0, 3]],
        [[1, 1, 6, 1, 6, 4], [2, 2, 3, 3]],  # the second is no area
        {"size": [7, 9], "counts": [10, 5, 48]},
        {
            "size": [7, 9],
            "counts": rle_masks.encode(np.asfortranarray(np.eye(7, 9, dtype=np.uint8)))["counts"].decode(),
        },
    ],
)
def test_a_compressed_rle_holds_the_same_pixels(segmentation: Any) -> None:
    compressed = compressed_rle(segmentation, height=7, width=9)
    assert compressed is not None
    assert (compressed["size"], type(compressed["counts"])) == ([7, 9], str)
    tree: dict[str, Any] = {"images": [{"id": 1, "height": 7, "width": 9}], "annotations": [], "categories": []}
    coco = COCO()
    coco.dataset = tree
    coco.createIndex()
    whole = [one for one in segmentation if len(one) >= 6] if isinstance(segmentation, list) else segmentation
    expected = coco.annToMask({"image_id": 1, "segmentation": whole})
    np.testing.assert_array_equal(rle_masks.decode(compressed), expected)


@pytest.mark.parametrize("segmentation", [None, [], [[1, 1, 2, 2]]])
def test_nothing_has_no_rle(segmentation: Any) -> None:
    assert compressed_rle(segmentation, height=7, width=9) is None
