"""Reads and changes LiteRT files by LiteRT's generated classes, without TensorFlow."""

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as litert

from detection.export.mediapipe.associated_files import remove_files
from detection.export.mediapipe.metadata_schema import METADATA_NAME
from schemas.errors import DataError
from schemas.quoting import one_line

_IDENTIFIER = b"TFL3"
_ALIGNMENT = 16  # bytes, of constants
_DTYPES = {number: name.lower() for name, number in vars(litert.TensorType).items() if name.isupper()}
# The generated classes do not check offsets; Python does, so they raise these for a damaged file.
_ERRORS = (AttributeError, IndexError, OverflowError, TypeError, ValueError, struct.error)


class Tensor(NamedTuple):
    """An input or output.

    number: index among the tensors of the graph.
    name: name of the tensor.
    signature_name: name in the file's signature; None: no name.
    dtype: NumPy's name.
    shape: shape of the tensor.
    """

    number: int
    name: str
    signature_name: str | None
    dtype: str
    shape: tuple[int, ...]


class LitertModel(NamedTuple):
    """A LiteRT file with one graph.

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
    """Reads an untrusted LiteRT file: only the tables of inputs, outputs, custom ops and metadata.

    Args:
        content: content of the file.
        where: name of the file in error messages.

    Raises:
        DataError: not a LiteRT file, a damaged one, or several graphs.
    """
    try:
        if content[4:8] != _IDENTIFIER:
            raise ValueError(f"its identifier is {content[4:8]!r}, not {_IDENTIFIER!r}")
        model = litert.Model.GetRootAs(content)
        if model.SubgraphsLength() != 1:
            raise DataError(
                f"{one_line(where)}: has {model.SubgraphsLength()} graphs, but MediaPipe runs only files with one, "
                "without loops. Export the model with --format mediapipe."
            )
        codes = [code.CustomCode() for code in _vector(model, "OperatorCodes")]
        return LitertModel(
            inputs=_tensors(model, "Inputs"),
            outputs=_tensors(model, "Outputs"),
            custom_ops=tuple(code.decode() for code in codes if code),
            metadata=_metadata(model),
        )
    except _ERRORS as error:
        reason = f"not a LiteRT file, or a damaged one: {one_line(error)}"
        raise DataError(f"{one_line(where)}: {reason}. Copy or export the model again.") from None


def _vector(table: Any, field: str) -> Iterable[Any]:
    """Yields the elements of a table's vector; an absent one is empty."""
    return map(getattr(table, field), range(getattr(table, f"{field}Length")()))


def _tensors(model: Any, which: Literal["Inputs", "Outputs"]) -> tuple[Tensor, ...]:
    graph = model.Subgraphs(0)
    names = {
        entry.TensorIndex(): entry.Name().decode()
        for signature in _vector(model, "SignatureDefs")
        for entry in _vector(signature, which)
    }
    found = []
    for index in _vector(graph, which):
        if not 0 <= index < graph.TensorsLength():
            raise ValueError(f"tensor {index} of its {which.lower()} is outside of its {graph.TensorsLength()} tensors")
        tensor = graph.Tensors(index)
        name, dtype = (tensor.Name() or b"").decode(), _DTYPES.get(tensor.Type(), f"type {tensor.Type()}")
        found.append(Tensor(index, name, names.get(index), dtype, tuple(_vector(tensor, "Shape"))))
    return tuple(found)


def _metadata(model: Any) -> bytes | None:
    for entry in _vector(model, "Metadata"):
        if entry.Name() == METADATA_NAME:
            if entry.Buffer() >= model.BuffersLength():
                raise ValueError(f"its metadata is in buffer {entry.Buffer()} of {model.BuffersLength()}")
            buffer = model.Buffers(entry.Buffer())
            return b"" if buffer.DataIsNone() else bytes(buffer.DataAsNumpy())
    return None


def unpack_model(content: bytes) -> Any:
    """Returns the `ModelT` of a trusted LiteRT file; its constants are views of `content`."""
    return litert.ModelT.InitFromPackedBuf(content)


def pack_model(model: Any) -> bytes:
    """Returns the LiteRT file of a `ModelT`."""
    builder = _AlignedBuilder()
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


class _AlignedBuilder(flatbuffers.Builder):
    """Aligns constants as the schema demands and the generated classes do not; runtimes map them."""

    def StartVector(self, width: int, length: int, alignment: int) -> int:  # noqa: N802
        return int(super().StartVector(width, length, _ALIGNMENT if width == 1 else alignment))


def set_metadata(content: bytes, metadata: bytes, *, outputs: Sequence[str] | None = None) -> bytes:
    """Adds metadata to a model, or replaces it; removes appended files.

    Args:
        content: LiteRT file with one graph.
        metadata: flatbuffer.
        outputs: all outputs in their new order, by signature name or tensor name; None: keep
            the order.

    Raises:
        DataError: `content` is not a LiteRT file with one graph.
        ValueError: `outputs` are not the names of all outputs.
    """
    content = remove_files(content)
    described = read_model(content, "the converted model")
    model = unpack_model(content)
    if outputs is not None:
        model.subgraphs[0].outputs = _indices(described.outputs, outputs)
    buffer = litert.BufferT(data=np.frombuffer(metadata, np.uint8))
    entries = model.metadata or []
    old = next((entry.buffer for entry in entries if entry.name == METADATA_NAME), None)
    if old is None:
        model.metadata = [*entries, litert.MetadataT(METADATA_NAME, len(model.buffers))]
        model.buffers.append(buffer)
    else:
        model.buffers[old] = buffer
    return pack_model(model)


def _indices(outputs: Sequence[Tensor], order: Sequence[str]) -> list[int]:
    """Returns the tensors of the outputs in the order of names."""
    by_name = {tensor.name: tensor.number for tensor in outputs}
    by_name |= {tensor.signature_name: tensor.number for tensor in outputs if tensor.signature_name is not None}
    indices = [by_name.get(name, -1) for name in order]
    if sorted(indices) != sorted(tensor.number for tensor in outputs):
        raise ValueError(f"the outputs are {sorted(by_name)}, not {list(order)}")
    return indices
