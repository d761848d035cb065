"""Flatbuffers from tables: read back by the package's own reader, and bounded on hostile bytes."""

import contextlib
import struct

import flatbuffers
import pytest
from flatbuffers.table import Table
from hypothesis import given
from hypothesis import strategies as st

from detection.export.mediapipe.flatbuffer_tables import FlatbufferError, Reader, Schema, encode, parse_schema

SCHEMA = parse_schema("""
file_identifier "TEST";
enum Size : byte { SMALL = 0 }
table Root {
  flag:bool; small:Size; large:uint; signed:int; real:float; text:string; choice:Choice; numbers:[int]; texts:[string];
  data:[ubyte] (force_align: 16);  // a comment: with a colon
  leaf: Leaf; leaves:[Leaf];
}
union Choice { Leaf, Empty }
table Leaf { name:string; value:float; }
table Empty { }
root_type Root;
""")
_FLOATS = st.floats(width=32, allow_nan=False)
_LEAVES = st.fixed_dictionaries({"name": st.none() | st.text(max_size=5), "value": _FLOATS})
_ROOTS = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "small": st.integers(-128, 127),
        "large": st.integers(0, 2**32 - 1),
        "signed": st.integers(-(2**31), 2**31 - 1),
        "real": _FLOATS,
        "text": st.none() | st.text(),
        "choice": st.none() | st.tuples(st.just("Leaf"), _LEAVES) | st.just(("Empty", {})),
        "numbers": st.none() | st.lists(st.integers(-(2**31), 2**31 - 1)),
        "texts": st.none() | st.lists(st.text(max_size=5)),
        "data": st.none() | st.binary(),
        "leaf": st.none() | _LEAVES,
        "leaves": st.none() | st.lists(_LEAVES, max_size=3),
    }
)


def read(content: bytes) -> dict[str, object]:
    found = Reader(content, SCHEMA).root()
    return found | {"data": None if found["data"] is None else bytes(found["data"])}


@given(_ROOTS)
def test_values_come_back(values: dict[str, object]) -> None:
    assert read(encode(SCHEMA, values)) == values


def test_the_fields_are_where_the_package_looks_for_them() -> None:
    values = {"flag": True, "large": 7, "text": "wörd", "choice": ("Leaf", {"value": 0.5}), "numbers": [3, -4]}
    content = encode(SCHEMA, values)
    assert flatbuffers.util.BufferHasIdentifier(content, 0, b"TEST")
    table = Table(content, flatbuffers.encode.Get(flatbuffers.packer.uoffset, content, 0))

    def place(slot: int) -> int:
        return int(table.Offset(4 + 2 * slot))

    flags = flatbuffers.number_types
    assert table.Get(flags.BoolFlags, table.Pos + place(0)) is True
    assert table.Get(flags.Uint32Flags, table.Pos + place(2)) == 7
    assert table.String(table.Pos + place(5)) == "wörd".encode()
    assert table.Get(flags.Uint8Flags, table.Pos + place(6)) == 1  # the first member
    union = Table(b"", 0)
    table.Union(union, place(7))
    assert union.Get(flags.Float32Flags, union.Pos + union.Offset(4 + 2 * 1)) == 0.5
    assert table.VectorLen(place(8)) == 2  # after the two slots of the union
    assert table.Get(flags.Int32Flags, table.Vector(place(8)) + 4) == -4
    assert place(1) == 0  # absent


def test_bytes_are_aligned_to_16() -> None:
    for length in range(40):
        content = encode(SCHEMA, {"data": b"\xaa" * length + b"!", "text": "x" * length})
        assert content.index(b"\xaa" * length + b"!") % 16 == 0


def test_an_unknown_field_is_a_bug() -> None:
    with pytest.raises(ValueError, match=r"Root has no fields \{'colour'\}"):
        encode(SCHEMA, {"colour": 1})


@given(_ROOTS, st.data())
def test_damaged_bytes_are_an_error_or_other_values(values: dict[str, object], data: st.DataObject) -> None:
    content = bytearray(encode(SCHEMA, values))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    with contextlib.suppress(FlatbufferError):
        assert read(bytes(content[:cut])).keys() == values.keys()


def test_another_identifier() -> None:
    with pytest.raises(FlatbufferError, match="identifier is b'NONE', not b'TEST'"):
        Reader(b"\0\0\0\0NONE", SCHEMA)


def test_a_text_that_is_not_utf8() -> None:
    content = encode(SCHEMA, {"text": "marker"}).replace(b"marker", b"mark\xff\xfe")
    with pytest.raises(FlatbufferError, match="not UTF-8"):
        read(content)


def test_a_union_of_an_unknown_type() -> None:
    content = bytearray(encode(SCHEMA, {"small": 77, "choice": ("Empty", {})}))
    (at,) = [number for number, byte in enumerate(content) if byte == 77]
    kinds = [number for number in (at - 1, at + 1) if content[number] == 2]
    content[kinds[0]] = 9
    with pytest.raises(FlatbufferError, match="a union of type 9"):
        read(bytes(content))


def test_shared_parts_do_not_expand_without_end() -> None:
    levels = 12
    tables = {f"T{level}": {"below": f"[T{level + 1}]"} for level in range(levels)} | {f"T{levels}": {"end": "int"}}
    schema = Schema("T0", b"TEST", tables, unions={})
    builder = flatbuffers.Builder()
    builder.StartObject(1)
    offset = builder.EndObject()
    for _ in range(levels):  # each vector names the one table below a hundred times
        builder.StartVector(4, 100, 4)
        for _ in range(100):
            builder.PrependUOffsetTRelative(offset)
        vector = builder.EndVector()
        builder.StartObject(1)
        builder.PrependUOffsetTRelativeSlot(0, vector, 0)
        offset = builder.EndObject()
    builder.Finish(offset, b"TEST")
    content = bytes(builder.Output())
    assert len(content) < 10_000
    with pytest.raises(FlatbufferError, match="more fields and elements"):
        Reader(content, schema).root()


@pytest.mark.parametrize("count", [2**30, 2**32 - 1])
def test_a_vector_longer_than_the_content(count: int) -> None:
    content = bytearray(encode(SCHEMA, {"numbers": [0x01020304]}))
    at = content.index(struct.pack("<II", 1, 0x01020304))
    struct.pack_into("<I", content, at, count)
    with pytest.raises(FlatbufferError, match="reach beyond its end"):
        read(bytes(content))
