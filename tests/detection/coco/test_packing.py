import json
import math
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detection.coco.packing import pack_entries, unpack_entries
from schemas.errors import DataError

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_ENTRY = st.dictionaries(st.text(), _JSON, max_size=6)


@given(_ENTRY, st.lists(_ENTRY, max_size=4))
def test_entries_come_back_equal_and_in_order(image: dict[str, Any], annotations: list[dict[str, Any]]) -> None:
    data = pack_entries(image, annotations)
    assert repr(unpack_entries(data)) == repr((image, annotations))
    assert pack_entries(image, annotations) == data


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_json_does_not_have_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack_entries({"id": 1}, [{"id": 2, "score": value}])


def test_what_is_inside_is_plain_compressed_json() -> None:
    image = {"id": 900100204805, "file_name": "ä b.jpg"}
    annotations = [{"id": 1, "bbox": [0.1, 1e-17, 3.0, 123456.789012345678]}]
    expected = {"image": image, "annotations": annotations}
    assert json.loads(zlib.decompress(pack_entries(image, annotations)).decode("utf-8")) == expected


@pytest.mark.parametrize("data", [b"", b"{}", zlib.compress(b"{}"), zlib.compress(b"[1]"), zlib.compress(b"{")])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DataError, match=f"{len(data)} bytes that do not hold an image's COCO entries"):
        unpack_entries(data)
