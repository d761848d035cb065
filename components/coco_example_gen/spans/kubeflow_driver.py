"""The driver as a program of a compiled pipeline: `python -m components.coco_example_gen.spans.kubeflow_driver`.

It replaces TFX's driver, which takes the files that patterns match for the data, whether used or
not.  The backend runs it before it searches its cache, with the arguments of the executor.
"""

import argparse
import logging
from collections.abc import Sequence

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
    output = pipeline_spec_pb2.ExecutorOutput()
    for key, value in resolved.items():
        if value is not None and given.get(key) != value:
            _set(output, key, value)
    artifact = kubeflow_v2_entrypoint_utils.to_runtime_artifact(examples, names)
    output.artifacts[keys.EXAMPLES_KEY].artifacts.add().CopyFrom(artifact)
    path = executor_input.outputs.output_file
    _LOGGER.info("resolved %s", resolved)
    write_text(path, json_format.MessageToJson(output, sort_keys=True))


def _set(output: pipeline_spec_pb2.ExecutorOutput, key: str, value: str | int) -> None:
    """Sets a parameter for both schemas: the executor reads `parameters` under 2.0, else `parameter_values`."""
    if isinstance(value, int):
        output.parameters[key].int_value = value
        output.parameter_values[key].number_value = value
    else:
        output.parameters[key].string_value = value
        output.parameter_values[key].string_value = value


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the driver with the arguments of the executor's command line, those of Beam included."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json_serialized_invocation_args", required=True)
    parser.add_argument("--json_serialized_inputs_spec_args")
    args, _ = parser.parse_known_args(arguments)
    executor_input = pipeline_spec_pb2.ExecutorInput()
    json_format.Parse(args.json_serialized_invocation_args, executor_input, ignore_unknown_fields=True)
    inputs_spec = None
    if args.json_serialized_inputs_spec_args:
        inputs_spec = pipeline_spec_pb2.ComponentInputsSpec()
        json_format.Parse(args.json_serialized_inputs_spec_args, inputs_spec, ignore_unknown_fields=True)
    run_driver(executor_input, inputs_spec)


if __name__ == "__main__":
    main()
