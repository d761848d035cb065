"""Records each execution of a component, as its last act, on every runner."""

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from tfx import types

from components.history.files import entries_of
from components.history.records import (
    DEFAULT_RULE,
    RUN_ROOT_KEY,
    Failure,
    Record,
    ReuseRule,
    recorded_parameters,
    write_record,
)
from components.history.stand_ins import describe, resolved
from detection.storage.paths import join, relative
from schemas.errors import CocoflowError, find_user_error
from schemas.quoting import one_line

_NOTEBOOK = "notebook"  # run of components in a notebook, which have no other
_MAX_ERROR = 500  # characters

Artifacts = dict[str, list[types.Artifact]]
Do = Callable[[Any, Artifacts, Artifacts, dict[str, Any]], None]


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
                made = Record(
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
                write_record(root, made, started=started)

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
        names = relative(output, join(root, "artifacts")).split("/")
        if len(names) > 3:
            return names[1], 1
        run, _, attempt = names[-1].rpartition(".")
        if run and attempt.isdecimal():
            return run, int(attempt)
    return _NOTEBOOK, 1
