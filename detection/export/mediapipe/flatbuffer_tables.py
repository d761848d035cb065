"""Writes and reads flatbuffers by schemas in the language of flatc.

A table is a dictionary of values by field name; None is an absent field.

| type | value |
|---|---|
| `bool`, `byte`, `ubyte`, `int`, `uint`, `float` | a number; absent: 0 |
| `string` | str |
| `TABLE` | dictionary |
| `UNION` | (name of the member, dictionary); takes two slots |
| `[ubyte]` | bytes, aligned to 16 like tensor data; read: a view |
| `[TYPE]` | list of values |

Source of the format: https://flatbuffers.dev/internals.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flatbuffers
from flatbuffers import number_types, packer

_SCALARS = {
    "bool": number_types.BoolFlags,
    "byte": number_types.Int8Flags,
    "ubyte": number_types.Uint8Flags,
    "int": number_types.Int32Flags,
    "uint": number_types.Uint32Flags,
    "float": number_types.Float32Flags,
}
_ABSENT = {"bool": False, "float": 0.0}  # other scalars: 0
_BYTES = "[ubyte]"
_BYTES_ALIGNMENT = 16
_IDENTIFIER = slice(4, 8)
_SIZE = 4  # bytes of an offset, and of the length of a vector
_OVERHEAD = 1 << 16
_MOST = 3_000_000  # fields and elements; the 442,000 anchors of the largest EfficientDet take 2,210,000

Table = dict[str, Any]


class FlatbufferError(Exception):
    """Bytes that are not the expected flatbuffer; the message is the reason."""


class Schema(NamedTuple):
    """Tables of one kind of flatbuffer.

    root: name of the root table.
    identifier: four bytes after the root's offset.
    tables: {table: {field: type}}; types in the order of the schema.
    unions: {union: members}; a member's number is its position, from 1.
    """

    root: str
    identifier: bytes
    tables: Mapping[str, Mapping[str, str]]
    unions: Mapping[str, Sequence[str]]

    def slots(self, table: str) -> Iterator[tuple[int, str, str]]:
        """Yields (slot, field, type); for a union, the slot of its type, which precedes that of its value."""
        slot = 0
        for field, kind in self.tables[table].items():
            yield slot, field, kind
            slot += 2 if kind in self.unions else 1

    def count(self, table: str) -> int:
        """Returns the number of a table's slots."""
        return sum(2 if kind in self.unions else 1 for kind in self.tables[table].values())


def parse_schema(text: str) -> Schema:
    """Parses a schema: tables, unions, root type and identifier; enumerations are bytes."""
    text = re.sub(r"//.*|\(.*\)", "", text)
    enums = set(re.findall(r"enum (\w+)", text))
    fields = {name: re.findall(r"(\w+)\s*:\s*([\w\[\]]+)", body) for name, body in _blocks("table", text)}
    return Schema(
        root=re.findall(r"root_type (\w+)", text)[0],
        identifier=re.findall(r'file_identifier "(\w+)"', text)[0].encode(),
        tables={
            name: {field: "byte" if kind in enums else kind for field, kind in pairs} for name, pairs in fields.items()
        },
        unions={name: re.findall(r"\w+", body) for name, body in _blocks("union", text)},
    )


def _blocks(keyword: str, text: str) -> list[tuple[str, str]]:
    """Returns name and body of each definition."""
    return re.findall(keyword + r" (\w+)\s*{([^}]*)}", text)


def encode(schema: Schema, values: Mapping[str, Any]) -> bytes:
    """Returns a flatbuffer whose root table has these values."""
    builder = flatbuffers.Builder()
    builder.Finish(_add_table(builder, schema, schema.root, values), schema.identifier)
    return bytes(builder.Output())


def _add_table(builder: flatbuffers.Builder, schema: Schema, name: str, values: Mapping[str, Any]) -> int:
    """Adds a table after all objects that it refers to; returns its offset."""
    if unknown := values.keys() - schema.tables[name].keys():
        raise ValueError(f"{name} has no fields {unknown}")
    placed: list[tuple[int, str, Any]] = []  # slot, type, number or offset
    for slot, field, kind in schema.slots(name):
        value = values.get(field)
        if value is None:
            continue
        if kind in schema.unions:
            member, content = value
            placed.append((slot, "ubyte", schema.unions[kind].index(member) + 1))
            placed.append((slot + 1, member, _add_table(builder, schema, member, content)))
        else:
            placed.append((slot, kind, value if kind in _SCALARS else _add(builder, schema, kind, value)))
    builder.StartObject(schema.count(name))
    for slot, kind, number in placed:
        if kind in _SCALARS:
            builder.PrependSlot(_SCALARS[kind], slot, number, 0)
        else:
            builder.PrependUOffsetTRelativeSlot(slot, number, 0)
    return int(builder.EndObject())


def _add(builder: flatbuffers.Builder, schema: Schema, kind: str, value: Any) -> int:
    """Adds an object that a table refers to; returns its offset."""
    if kind == "string":
        return int(builder.CreateString(value))
    if kind == _BYTES:
        return _add_vector(builder, value, size=1, alignment=_BYTES_ALIGNMENT)
    if not kind.startswith("["):
        return _add_table(builder, schema, kind, value)
    element = kind[1:-1]
    if element in _SCALARS:
        scalar = _SCALARS[element]
        content = b"".join(map(scalar.packer_type.pack, value))
        return _add_vector(builder, content, size=scalar.bytewidth, alignment=scalar.bytewidth)
    offsets = [_add(builder, schema, element, one) for one in value]
    builder.StartVector(_SIZE, len(offsets), _SIZE)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _add_vector(builder: flatbuffers.Builder, content: bytes, *, size: int, alignment: int) -> int:
    builder.StartVector(size, len(content) // size, alignment)
    builder.head -= len(content)
    builder.Bytes[builder.head : builder.head + len(content)] = content
    return int(builder.EndVector())


class Reader:
    """Reads an untrusted flatbuffer: checks each position and limits work and memory.

    Args:
        content: flatbuffer, from its first byte on.
        schema: schema of the flatbuffer.

    Raises:
        FlatbufferError: also in all methods: the identifier differs, or an offset points outside.
    """

    def __init__(self, content: bytes | memoryview, schema: Schema) -> None:
        self._content = memoryview(content)
        self._schema = schema
        # Vectors may share elements, so that a small file could expand to any size.
        self._left = min(4 * len(content) + _OVERHEAD, _MOST)
        identifier = bytes(self._content[_IDENTIFIER])
        if identifier != schema.identifier:
            raise FlatbufferError(f"its identifier is {identifier!r}, not {schema.identifier!r}")

    def root(self) -> Table:
        """Reads the root table and all tables that it refers to."""
        return self._table(self._schema.root, self._target(0))

    def _table(self, name: str, position: int) -> Table:
        """Reads a table, and all tables that it refers to."""
        found = self._slots(position)
        values: Table = {}
        for slot, field, kind in self._schema.slots(name):
            if kind in self._schema.unions:
                values[field] = self._union(self._schema.unions[kind], found, slot)
            elif (place := found.get(slot)) is None:
                values[field] = _ABSENT.get(kind, 0) if kind in _SCALARS else None
            else:
                values[field] = self._value(kind, place)
        return values

    def _slots(self, table: int) -> dict[int, int]:
        """Returns the positions of a table's present fields by slot."""
        vtable = table - self._number(packer.soffset, table)
        count = self._number(packer.voffset, vtable) // 2 - 2
        self._spend(max(count, 1))
        offsets = [self._number(packer.voffset, vtable + 4 + 2 * slot) for slot in range(count)]
        return {slot: table + offset for slot, offset in enumerate(offsets) if offset}

    def _union(self, members: Sequence[str], found: Mapping[int, int], slot: int) -> tuple[str, Table] | None:
        number = self._number(packer.uint8, found[slot]) if slot in found else 0
        if number == 0:
            return None
        if number > len(members) or slot + 1 not in found:
            raise FlatbufferError(f"a union of type {number} has no value, or a value of an unknown type")
        return members[number - 1], self._table(members[number - 1], self._target(found[slot + 1]))

    def _value(self, kind: str, place: int) -> Any:
        """Reads a field, or an element of a vector."""
        if kind in _SCALARS:
            return self._number(_SCALARS[kind].packer_type, place)
        target = self._target(place)
        if kind == "string":
            return self._string(target)
        if kind == _BYTES:
            return self._bytes(target, 1)
        if not kind.startswith("["):
            return self._table(kind, target)
        element = kind[1:-1]
        size = _SCALARS[element].bytewidth if element in _SCALARS else _SIZE
        count = len(self._bytes(target, size)) // size
        self._spend(count)
        return [self._value(element, target + _SIZE + size * number) for number in range(count)]

    def _string(self, position: int) -> str:
        content = self._bytes(position, 1)
        self._spend(1 + len(content) // 64)
        try:
            return bytes(content).decode()
        except UnicodeDecodeError:
            raise FlatbufferError("a string is not UTF-8") from None

    def _bytes(self, position: int, size: int) -> memoryview:
        """Returns the content of a vector with elements of `size` bytes."""
        length = self._number(packer.uoffset, position) * size
        start = position + _SIZE
        if length > len(self._content) - start:
            raise FlatbufferError(f"{length} bytes at offset {start} reach beyond its end, {len(self._content)}")
        return self._content[start : start + length]

    def _target(self, place: int) -> int:
        return place + int(self._number(packer.uoffset, place))

    def _number(self, number: Any, position: int) -> Any:
        """Reads a number of one of flatbuffers' packers."""
        if not 0 <= position <= len(self._content) - number.size:
            raise FlatbufferError(f"an offset, {position}, is outside of its {len(self._content)} bytes")
        return number.unpack_from(self._content, position)[0]

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise FlatbufferError("it has more fields and elements than a file of a detector")
