"""Tensors of LiteRT files, and metadata added to them."""

from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated

from detection.export.mediapipe.associated_files import append_files
from detection.export.mediapipe.litert_model import read_model, set_metadata
from schemas.errors import DataError
from tests.detection.export.mediapipe.tiny_models import (
    NAMES,
    RAW_NAMES,
    SIDE,
    detections_model,
    looping_model,
    model_with_weights,
    raw_model,
    run,
)

METADATA = b"\x08\0\0\0M001" + b"metadata" * 5


def test_inputs_and_outputs() -> None:
    model = read_model(detections_model(), "m")
    ((_, _, name, dtype, shape),) = model.inputs
    assert (name, dtype, shape) == ("images", "float32", (1, SIDE, SIDE, 3))
    assert {tensor.signature_name: tensor.shape for tensor in model.outputs} == {
        NAMES[0]: (1, 4, 4),
        NAMES[1]: (1, 4),
        NAMES[2]: (1, 4),
        NAMES[3]: (1,),
    }
    assert {tensor.dtype for tensor in model.outputs} == {"float32"}
    assert (model.custom_ops, model.metadata) == ((), None)
    assert read_model(detections_model("uint8"), "m").inputs[0].dtype == "uint8"


def _plain(value: Any) -> Any:
    """An object of the generated classes as dictionaries and lists, which can be compared."""
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {name: _plain(field) for name, field in vars(value).items()} if hasattr(value, "__dict__") else value


def test_only_metadata_is_added() -> None:
    model = model_with_weights()[0]
    content = set_metadata(model, METADATA)
    assert read_model(content, "m").metadata == METADATA
    found, old = (_plain(schema_py_generated.ModelT.InitFromPackedBuf(each)) for each in (content, model))
    assert found["metadata"].pop() == {"name": b"TFLITE_METADATA", "buffer": len(old["buffers"])}
    assert bytes(found["buffers"].pop()["data"]) == METADATA
    assert found == old
    assert len(old["subgraphs"][0]["operators"]) > 1


@pytest.mark.parametrize("length", range(40, 57))
def test_constants_keep_their_alignment(length: int) -> None:
    model, weights = model_with_weights()
    content = set_metadata(model, METADATA + b"\xaa" * length)
    assert content.index(weights) % 16 == 0
    assert content.index(METADATA) % 16 == 0


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1]])
def test_outputs_in_any_order(names: tuple[str, ...]) -> None:
    model = detections_model()
    content = set_metadata(model, METADATA, outputs=names)
    described = read_model(content, "m")
    assert tuple(tensor.signature_name for tensor in described.outputs) == names
    image = np.full((SIDE, SIDE, 3), 200, np.float32)
    for one, other in zip(run(content, image, NAMES), run(model, image, NAMES), strict=True):
        np.testing.assert_array_equal(one, other)
    by_tensor = [tensor.name for tensor in described.outputs[::-1]]
    again = read_model(set_metadata(content, METADATA, outputs=by_tensor), "m")
    assert [tensor.name for tensor in again.outputs] == by_tensor


def test_other_outputs_are_a_bug() -> None:
    for names in (NAMES[:3], [*NAMES[:3], "other"], [*NAMES, NAMES[0]]):
        with pytest.raises(ValueError, match="the outputs are"):
            set_metadata(detections_model(), METADATA, outputs=names)


def test_metadata_is_replaced() -> None:
    once = append_files(set_metadata(raw_model(), METADATA), {"labels.txt": b"a\n"})
    twice = set_metadata(once, METADATA[:8] + b"other", outputs=RAW_NAMES)
    assert read_model(twice, "m").metadata == METADATA[:8] + b"other"
    assert b"labels.txt" not in twice
    found = schema_py_generated.ModelT.InitFromPackedBuf(twice)
    assert [entry.name for entry in found.metadata].count(b"TFLITE_METADATA") == 1
    assert len(found.buffers) == len(schema_py_generated.ModelT.InitFromPackedBuf(once).buffers)


def test_external_buffers_are_kept() -> None:
    model = schema_py_generated.ModelT.InitFromPackedBuf(detections_model())
    model.externalBuffers = [schema_py_generated.ExternalBufferT(id=5, length=7)]
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), b"TFL3")
    content = set_metadata(bytes(builder.Output()), METADATA)
    (found,) = schema_py_generated.ModelT.InitFromPackedBuf(content).externalBuffers
    assert (found.id, found.length) == (5, 7)


def test_a_model_with_loops_is_refused() -> None:
    with pytest.raises(DataError, match=r"^m: has 3 graphs, but MediaPipe runs only files with one") as error:
        read_model(looping_model(), "m")
    assert "--format mediapipe" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"x", b"PK\x03\x04 an archive", b"\0" * 100])
def test_other_files_are_refused(content: bytes) -> None:
    with pytest.raises(
        DataError, match=r"^a\\nb: not a LiteRT file, or a damaged one: .*Copy or export the model again"
    ):
        read_model(content, "a\nb")
