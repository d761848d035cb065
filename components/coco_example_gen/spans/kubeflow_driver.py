"""The driver as a program of a compiled pipeline: `python -m components.coco_example_gen.spans.kubeflow_driver`.

It replaces TFX's driver, which takes the files that patterns match for the data, whether used or
not.  The backend runs it before it searches its cache, with the arguments of the executor.
"""

import argparse
import logging
from collections.abc import Sequence
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_entrypoint_utils
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys

from components.coco_example_gen.spans.resolution import mark, resolve
from detection.storage.atomic import write_text

_LOGGER = logging.getLogger("cocoflow.example_gen")


def run_driver(
    executor_input: pipeline_spec_pb2.ExecutorInput, inputs_spec: pipeline_spec_pb2.ComponentInputsSpec | None
) -> None:
    """Writes an `ExecutorOutput` with the resolved parameters and the marked `Examples`.

    Args:
        executor_input: artifacts and parameters of the execution.
        inputs_spec: types of the parameters; None under schema 2.0, which carries them itself.

    Raises:
        ConfigError: no data set, or keys about spans that do not fit its paths.
        DataError: the files are missing or not recognized.
    """
    given = kubeflow_v2_entrypoint_utils.parse_execution_properties(
        executor_input.inputs.parameter_values, executor_input.inputs.parameters, inputs_spec
    )
    resolved = resolve(given)
    names: dict[int, str] = {}
    outputs = kubeflow_v2_entrypoint_utils.parse_raw_artifact_dict(executor_input.outputs.artifacts, names)
    examples = artifact_utils.get_single_instance(outputs[keys.EXAMPLES_KEY])
    mark(examples, resolved)
    changed = {key: value for key, value in resolved.items() if value is not None and given.get(key) != value}
    # The executor reads `parameters` under schema 2.0, else `parameterValues`.
    typed = {key: {"intValue" if isinstance(value, int) else "stringValue": value} for key, value in changed.items()}
    output = json_format.ParseDict(
        {"parameters": typed, "parameterValues": changed}, pipeline_spec_pb2.ExecutorOutput()
    )
    artifact = kubeflow_v2_entrypoint_utils.to_runtime_artifact(examples, names)
    output.artifacts[keys.EXAMPLES_KEY].artifacts.add().CopyFrom(artifact)
    path = executor_input.outputs.output_file
    _LOGGER.info("resolved %s", resolved)
    write_text(path, json_format.MessageToJson(output, sort_keys=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the driver with the arguments of the executor's command line, those of Beam included."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json_serialized_invocation_args", required=True)
    parser.add_argument("--json_serialized_inputs_spec_args")
    args, _ = parser.parse_known_args(arguments)
    run_driver(
        _parsed(args.json_serialized_invocation_args, pipeline_spec_pb2.ExecutorInput()),
        _parsed(args.json_serialized_inputs_spec_args, pipeline_spec_pb2.ComponentInputsSpec()),
    )


def _parsed(text: str | None, message: Any) -> Any:
    return None if text is None else json_format.Parse(text, message, ignore_unknown_fields=True)


if __name__ == "__main__":
    main()
