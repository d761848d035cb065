"""Tensors of LiteRT files, and adding metadata to the files, without TensorFlow."""

import dataclasses
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import flatbuffers

from detection.export.mediapipe.associated_files import without_files
from detection.export.mediapipe.flatbuffer_tables import (
    RAW,
    FlatbufferError,
    Placed,
    Reader,
    Table,
    add_bytes,
    add_table,
)
from detection.export.mediapipe.metadata_schema import METADATA_NAME, MODEL, MODEL_PARTS
from schemas.errors import DataError
from schemas.quoting import one_line

_TYPES = {0: "float32", 1: "float16", 2: "int32", 3: "uint8", 4: "int64", 6: "bool", 7: "int16", 9: "int8"}
_ALIGNMENT = 16  # bytes, of constant tensors
_LENGTH = 4  # bytes before a vector


class Tensor(NamedTuple):
    """An input or output.

    number: index among the tensors of the graph.
    name: name of the tensor.
    signature_name: name in the file's signature; None: no name.
    dtype: NumPy's name; for types not used in detectors, the number in the schema.
    shape: shape of the tensor.
    """

    number: int
    name: str
    signature_name: str | None
    dtype: str
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class LitertModel:
    """A LiteRT file with one graph.

    Attributes:
        inputs: inputs in the order of the file.
        outputs: outputs in the order of the file.
        custom_ops: names of custom ops.
        metadata: MediaPipe's metadata; None: no metadata.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    custom_ops: tuple[str, ...]
    metadata: bytes | None


def read_model(content: bytes, where: str) -> LitertModel:
    """Reads an untrusted LiteRT file.

    Args:
        content: content of the file.
        where: name of the file in error messages.

    Raises:
        DataError: not a LiteRT file, a damaged one, or several graphs.
    """
    try:
        model = Reader(content, MODEL).root()
        graphs = model["subgraphs"] or []
        if len(graphs) != 1:
            raise DataError(
                f"{one_line(where)}: has {len(graphs)} graphs, but MediaPipe runs only files with one, without loops. "
                "Export the model with --format mediapipe."
            )
        return LitertModel(
            inputs=_tensors(model, "inputs"),
            outputs=_tensors(model, "outputs"),
            custom_ops=tuple(code["custom_code"] for code in model["operator_codes"] or () if code["custom_code"]),
            metadata=_metadata(model),
        )
    except FlatbufferError as error:
        raise damaged(where, error) from None


def damaged(where: str, reason: object) -> DataError:
    """Returns the error for a damaged file, or one that is not a LiteRT file."""
    return DataError(
        f"{one_line(where)}: not a LiteRT file, or a damaged one: {reason}. Copy or export the model again."
    )


def _tensors(model: Table, which: str) -> tuple[Tensor, ...]:
    (graph,) = model["subgraphs"]
    tensors = graph["tensors"] or []
    names = {
        entry["tensor_index"]: entry["name"]
        for signature in model["signature_defs"] or ()
        for entry in signature[which] or ()
    }
    found = []
    for index in graph[which] or ():
        if not 0 <= index < len(tensors):
            raise FlatbufferError(f"tensor {index} of its {which} is outside of its {len(tensors)} tensors")
        tensor = tensors[index]
        dtype = _TYPES.get(tensor["type"], f"type {tensor['type']}")
        found.append(Tensor(index, tensor["name"] or "", names.get(index), dtype, tuple(tensor["shape"] or ())))
    return tuple(found)


def _metadata(model: Table) -> bytes | None:
    buffers = model["buffers"] or []
    for entry in model["metadata"] or ():
        if entry["name"] == METADATA_NAME:
            if entry["buffer"] >= len(buffers):
                raise FlatbufferError(f"its metadata is in buffer {entry['buffer']} of {len(buffers)}")
            return bytes(buffers[entry["buffer"]]["data"] or b"")
    return None


def with_metadata(content: bytes, metadata: bytes, *, outputs: Sequence[str] | None = None) -> bytes:
    """Adds metadata to a model, or replaces it; removes appended files.

    The bytes of the graph are unchanged.  Flatbuffer offsets are relative and objects may be anywhere, so a new root
    table with the longer lists of buffers and metadata is put in front of the old one, which is no longer
    referenced.  LiteRT's generated classes would unpack and pack the complete model and misalign its constants.

    Args:
        content: LiteRT file with one graph.
        metadata: flatbuffer.
        outputs: all outputs in their new order, by signature name or tensor name; None: keep
            the order.

    Raises:
        DataError: `content` is not a LiteRT file with one graph.
        ValueError: `outputs` are not the names of all outputs.
    """
    model = bytearray(without_files(content))
    model += bytes(-len(model) % _ALIGNMENT)
    described = read_model(bytes(model), "the converted model")
    reader = Reader(bytes(model), MODEL_PARTS)
    parts = reader.root()
    if outputs is not None:
        places = reader.table("SubGraph", parts["subgraphs"][0])["outputs"]
        indices = _indices(described.outputs, outputs)
        struct.pack_into(f"<{len(indices)}i", model, places + _LENGTH, *indices)
    builder = flatbuffers.Builder(len(model) + len(metadata) + 4096)
    start = add_bytes(builder, bytes(model)) - _LENGTH  # of the model's first byte, from the end

    def kept(kind: str, value: Any) -> Any:
        if kind == RAW:
            return None if value is None else Placed(start - value)
        return [kept(RAW, one) for one in value or ()] if kind == f"[{RAW}]" else value

    values = {field: kept(kind, parts[field]) for field, kind in MODEL_PARTS.tables["Model"].items()}
    entries = [reader.table("Metadata", position) for position in parts["metadata"] or ()]
    old = next((entry["buffer"] for entry in entries if entry["name"] == METADATA_NAME), None)
    if old is None:
        values["metadata"].append({"name": METADATA_NAME, "buffer": len(values["buffers"])})
        values["buffers"].append({"data": metadata})
    else:
        values["buffers"][old] = {"data": metadata}
    builder.Finish(add_table(builder, MODEL, MODEL.root, values), MODEL.identifier)
    return bytes(builder.Output())


def _indices(outputs: Sequence[Tensor], order: Sequence[str]) -> list[int]:
    """Returns the tensors of the outputs in the order of names."""
    by_name = {tensor.name: tensor.number for tensor in outputs}
    by_name |= {tensor.signature_name: tensor.number for tensor in outputs if tensor.signature_name is not None}
    indices = [by_name.get(name, -1) for name in order]
    if sorted(indices) != sorted(tensor.number for tensor in outputs):
        raise ValueError(f"the outputs are {sorted(by_name)}, not {list(order)}")
    return indices
