import json
import math
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detection.datasets.annotations import packed_entries as packing
from detection.datasets.annotations.packed_entries import EntriesTooLargeError, pack_entries, unpack_entries
from schemas.errors import DataError

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_EXTRAS = st.dictionaries(st.text(), _JSON, max_size=6)
_IMAGE = {"id": 7, "file_name": "a.png"}
_BOX = {"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2.5, 3, 4]}


@given(_EXTRAS, st.lists(_EXTRAS, max_size=4))
def test_entries_come_back_equal_and_in_order(extras: dict[str, Any], others: list[dict[str, Any]]) -> None:
    image = {key: value for key, value in extras.items() if key not in ("width", "height")} | _IMAGE
    annotations = [each | _BOX | {"id": number} for number, each in enumerate(others)]
    data = pack_entries(image, annotations)
    assert repr(unpack_entries(data)) == repr((image, annotations))
    assert pack_entries(image, annotations) == data


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_json_does_not_have_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        pack_entries({"id": 1}, [{"id": 2, "score": value}])


def test_what_is_inside_is_plain_compressed_json() -> None:
    image = {"id": 900100204805, "file_name": "ä b.jpg"}
    annotations = [_BOX | {"bbox": [0.1, 1e-17, 3.0, 123456.789012345678]}]
    expected = {"image": image, "annotations": annotations}
    assert json.loads(zlib.decompress(pack_entries(image, annotations)).decode("utf-8")) == expected


@pytest.mark.parametrize("data", [b"", b"{}", zlib.compress(b"{}"), zlib.compress(b"[1]"), zlib.compress(b"{")])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DataError, match=f"{len(data)} bytes that are not an image's COCO entries"):
        unpack_entries(data)


def _packed(image: Any, annotations: Any) -> bytes:
    return zlib.compress(json.dumps({"image": image, "annotations": annotations}).encode())


@pytest.mark.parametrize(
    ("image", "annotations", "reason"),
    [
        ([1], [], r"image: not an object: \[1\]"),
        (_IMAGE | {"id": "7"}, [], 'image: invalid id: "7"'),
        (_IMAGE | {"file_name": "\ud800"}, [], "image: cannot be written as JSON in UTF-8: half a character"),
        (_IMAGE, {}, "annotations is not a list"),
        (_IMAGE, [None], r"annotations\[0\]: not an object: null"),
        (_IMAGE, [_BOX | {"image_id": 8}], r"annotations\[0\]: unknown image_id: 8\. The image's id is 7"),
        (_IMAGE, [_BOX, _BOX], r"annotations\[1\]: duplicate id\. Give"),
    ],
)
def test_crafted_entries_are_validated_as_those_of_a_coco_file(image: Any, annotations: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        unpack_entries(_packed(image, annotations))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 100_000, "nested more than 64 deep"),
        (b'{"image": ' + b"[" * 65 + b"]" * 65 + b"}", "nested more than 64 deep"),
        (b'{"image": 1' + b"0" * 5000 + b"}", "digits"),
        (b'"\xff"', "codec can't decode"),
        (b"[]", "list indices"),
    ],
)
def test_crafted_json_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        unpack_entries(zlib.compress(text))


def test_a_bomb_takes_no_more_memory_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 MiB of zeros in 256 KiB: of them only what a record may hold is unpacked."""
    packer = zlib.compressobj(9)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(256)) + packer.flush()
    monkeypatch.setattr(packing, "MAX_IMAGE_ENTRIES", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="they unpack to more than 1048576 bytes"):
            unpack_entries(bomb)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_what_is_packed_can_be_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(zlib.decompress(pack_entries(_IMAGE, [_BOX])))
    monkeypatch.setattr(packing, "MAX_IMAGE_ENTRIES", size)
    assert unpack_entries(pack_entries(_IMAGE, [_BOX])) == (_IMAGE, [_BOX])
    with pytest.raises(EntriesTooLargeError, match=f"{size + 1} bytes of JSON, more than {size}"):
        pack_entries(_IMAGE | {"id": 70}, [_BOX])


def test_truncated_entries_are_refused() -> None:
    with pytest.raises(DataError, match="they are truncated"):
        unpack_entries(pack_entries(_IMAGE, [_BOX])[:-6])
