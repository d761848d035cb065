"""Executions of components: what decides about their reuse, and the record that each writes as its last act.

Components that select from the history hand on artifacts of earlier components: see `resolve_to`.
"""

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, cast

from pydantic import TypeAdapter
from tfx import types

from components.history.files import entries_of
from components.history.records import RESOLVED_PROPERTY, RUN_ROOT_KEY, Execution, Failure, Output, Value
from components.history.store import digest_of_text, relative_paths, write_execution
from detection.storage.atomic import write_json
from detection.storage.json_files import parse_file
from detection.storage.paths import join, relative
from schemas.artifacts import ARTIFACTS, RESOLVED_JSON
from schemas.errors import CocoflowError, find_user_error
from schemas.quoting import one_line

_NOTEBOOK = "notebook"  # run of components in a notebook, which have no other
_MAX_ERROR = 500  # characters
_MAX_PARAMETER = 1000  # characters; of a longer one its digest is recorded
_STRUCT_KEY = "__value__"  # under which TFX holds the value of a property that Kubeflow hands over
_ARTIFACTS = TypeAdapter(dict[str, list[Output]])

Artifacts = dict[str, list[types.Artifact]]
Do = Callable[[Any, Artifacts, Artifacts, dict[str, Any]], None]


@dataclass(frozen=True)
class ReuseRule:
    """What an execution of a component is a function of; an executor's `recorded` and its driver share it.

    Attributes:
        code: changes when equal parameters and inputs give other outputs.
        deciding: returns the execution parameters that decide about the outputs; None and `run.root` never count.
    """

    code: str = "1"
    deciding: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict

    def key(
        self, component: str, *, parameters: Mapping[str, Any], inputs: Mapping[str, Sequence[str]], root: str
    ) -> str:
        """Returns the key of an execution: executions of equal keys make the same.

        Args:
            component: id of the node.
            parameters: execution parameters.
            inputs: URIs by name.
            root: `run.root`.
        """
        chosen = self.deciding(parameters).items()
        deciding = {name: value for name, value in chosen if name != RUN_ROOT_KEY and value is not None}
        parts = [component, self.code, relative_paths(deciding, root), relative_paths(dict(inputs), root)]
        return digest_of_text(json.dumps(parts, sort_keys=True))


DEFAULT_RULE = ReuseRule()


def recorded(component: str, rule: ReuseRule = DEFAULT_RULE) -> Callable[[Do], Do]:
    """Makes an executor's `Do` write a record of its outputs, or of its failure, when it ends.

    Without the parameter `RUN_ROOT_KEY`, nothing is recorded.  A record that cannot be written fails the component.

    Args:
        component: id of the node.
        rule: what its executions are a function of, as its driver has it.
    """

    def decorate(work: Do) -> Do:
        @functools.wraps(work)
        def do(executor: Any, inputs: Artifacts, outputs: Artifacts, parameters: dict[str, Any]) -> None:
            root = parameters.get(RUN_ROOT_KEY)
            if not root:
                work(executor, inputs, outputs, parameters)
                return
            if all(one.is_external for artifacts in outputs.values() for one in artifacts):
                return  # reused, see `components.history.driver`
            logging.getLogger(__name__).info("%s is executed", component)
            run, attempt = run_of(next(one.uri for artifacts in outputs.values() for one in artifacts), root)
            started = datetime.now(UTC)

            def record(state: Literal["done", "failed"], **result: Any) -> None:
                read = read_uris(inputs)
                execution = Execution(
                    component=component,
                    state=state,
                    run=run,
                    attempt=attempt,
                    # The parameters have by now what the component resolved itself.
                    key=rule.key(component, parameters=parameters, inputs=read, root=root),
                    parameters=recorded_parameters(parameters),
                    inputs=read,
                    **result,
                )
                write_execution(root, execution, started=started)

            try:
                work(executor, inputs, outputs, parameters)
            except Exception as error:
                cause = find_user_error(error) or error
                failure = Failure(type(cause).__name__, one_line(str(cause).strip())[:_MAX_ERROR])
                with contextlib.suppress(CocoflowError):  # the component's error counts
                    record("failed", error=failure)
                raise
            made = {name: [describe(one) for one in artifacts] for name, artifacts in sorted(outputs.items())}
            files = entries_of(output for listed in made.values() for output in listed)
            record("done", outputs=made, files=files)

        return do

    return decorate


def read_uris(inputs: Mapping[str, Sequence[types.Artifact]]) -> dict[str, list[str]]:
    """Returns the URIs of what a component reads, by name; artifacts that stand for others are replaced by these.

    Raises:
        DataError: a list of artifacts cannot be read.
    """
    return {name: [one.uri for one in resolved(artifacts)] for name, artifacts in sorted(inputs.items())}


def run_of(output: str, root: str) -> tuple[str, int]:
    """Returns the id of the run that makes an output, and its attempt, by the URI below `<run.root>/artifacts`.

    In this process, `components.history.driver` named the output <component>/<output>/<run>.<attempt>.  In containers,
    the run is the second part: Vertex has <project>/<job>/<task>/<output>, Kubeflow <pipeline>/<run>/<task>/<output>.

    Args:
        output: URI of an output of the component that is executed.
        root: `run.root`.
    """
    with contextlib.suppress(ValueError):  # an output elsewhere
        names = relative(output, join(root, ARTIFACTS)).split("/")
        if len(names) > 3:
            return names[1], 1
        run, _, attempt = names[-1].rpartition(".")
        if run and attempt.isdecimal():
            return run, int(attempt)
    return _NOTEBOOK, 1


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
        listed = parse_file(
            _ARTIFACTS, join(artifact.uri, RESOLVED_JSON), what="a list of artifacts", remedy="Run again."
        )
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


def properties_of(artifact: Any) -> dict[str, Value]:
    """Returns the properties of an artifact of ML Metadata, with the custom ones.

    Kubeflow's numbers are JSON's in a structure; ours are integers.
    """
    named = (*artifact.properties.items(), *artifact.custom_properties.items())
    values = {name: _value_of(value) for name, value in named if name != "is_external"}
    return {name: value for name, value in values.items() if value is not None}


def _value_of(value: Any) -> Value | None:
    kind = value.WhichOneof("value")
    if kind in ("string_value", "int_value", "double_value"):
        return cast(Value, getattr(value, kind))
    held = value.struct_value.fields.get(_STRUCT_KEY)
    if held is None:
        return None
    return int(held.number_value) if held.WhichOneof("kind") == "number_value" else str(held.string_value)


def recorded_parameters(parameters: Mapping[str, Any]) -> dict[str, Value]:
    """Returns execution parameters as a record has them."""
    return {
        name: f"sha256:{digest_of_text(value)}" if isinstance(value, str) and len(value) > _MAX_PARAMETER else value
        for name, value in sorted(parameters.items())
        if isinstance(value, str | int | float) and name != RUN_ROOT_KEY
    }
