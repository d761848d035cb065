"""Artifacts that stand for artifacts of earlier components: what a component that selects hands on."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from pydantic import TypeAdapter
from tfx import types

from components.history.records import RESOLVED_PROPERTY, Output, properties_of
from detection.storage.atomic import write_json
from detection.storage.json_files import parse_file
from detection.storage.paths import join
from schemas.artifacts import RESOLVED_JSON

_LIST = TypeAdapter(dict[str, list[Output]])


def resolve_to(output: types.Artifact, artifacts: Sequence[Output]) -> None:
    """Makes an output artifact stand for artifacts of earlier components.

    Args:
        output: artifact of a component that selects.
        artifacts: those that it selected; may be empty.

    Raises:
        DataError: the list cannot be written.
    """
    write_json(join(output.uri, RESOLVED_JSON), {"artifacts": [asdict(one) for one in artifacts]})
    output.set_int_custom_property(RESOLVED_PROPERTY, 1)


def resolved(artifacts: Iterable[types.Artifact]) -> list[types.Artifact]:
    """Replaces artifacts that stand for others by these.

    Raises:
        DataError: the list cannot be read.
    """
    actual: list[types.Artifact] = []
    for artifact in artifacts:
        if not artifact.get_int_custom_property(RESOLVED_PROPERTY):
            actual.append(artifact)
            continue
        listed = parse_file(_LIST, join(artifact.uri, RESOLVED_JSON), what="a list of artifacts", remedy="Run again.")
        actual += [fill(type(artifact)(), one) for one in listed["artifacts"]]
    return actual


def describe(artifact: types.Artifact) -> Output:
    """Returns what a record holds of an artifact."""
    return Output(artifact.uri, artifact.type_name, properties_of(artifact.mlmd_artifact))


def fill(artifact: types.Artifact, output: Output) -> types.Artifact:
    """Gives an artifact the URI and the properties that a record has, the inverse of `describe`; returns it."""
    artifact.uri = output.uri
    for name, value in output.properties.items():
        if name == "split_names":
            artifact.split_names = value
        elif isinstance(value, str):
            artifact.set_string_custom_property(name, value)
        elif isinstance(value, int):
            artifact.set_int_custom_property(name, value)
        else:
            artifact.set_float_custom_property(name, value)
    return artifact
