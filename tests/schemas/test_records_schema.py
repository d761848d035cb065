from pathlib import Path

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

import schemas
from schemas import features

_KINDS = {"bytes": schema_pb2.BYTES, "int64": schema_pb2.INT, "float": schema_pb2.FLOAT}


def _documented() -> dict[str, tuple[int, bool]]:
    """Key -> (type, whether it is a list), as the comments in features.py tell."""
    documented = {}
    for line in Path(features.__file__).read_text().splitlines():
        if line[:1].isupper():
            name, _, rest = line.partition(" = ")
            comment = rest.partition("#")[2]
            if comment:
                kind, _, shape = comment.strip().partition(" ")
                documented[getattr(features, name)] = (_KINDS[kind], shape.startswith("[N]"))
    # Its comment stands above, in full sentences.
    return documented | {features.COCO: (schema_pb2.BYTES, False)}


def test_the_schema_names_every_key_with_its_type_and_length() -> None:
    text = Path(schemas.__file__).with_name("records.pbtxt").read_text()
    schema = text_format.Parse(text, schema_pb2.Schema())
    described = {feature.name: (feature.type, not feature.HasField("shape")) for feature in schema.feature}
    assert described == _documented()
    assert len(described) == 17
