"""A small compiled pipeline, in place of the compiler's 20 seconds; `test_submit` takes the real one."""

import copy
import json
from typing import Any

import yaml

_TASKS = {
    "CocoExampleGen": {
        "cachingOptions": {"enableCache": True},
        "componentRef": {"name": "CocoExampleGen"},
        "taskInfo": {"name": "CocoExampleGen"},
    },
    "previous_blessed_model": {
        "componentRef": {"name": "CocoExampleGen"},
        "taskInfo": {"name": "previous_blessed_model"},
    },
}
_CONTAINER = {"container": {"image": "image:1", "command": ["python"]}}


def vertex_job() -> dict[str, Any]:
    """Content of a compiled pipeline for Vertex."""
    return {
        "displayName": "digits",
        "labels": {"tfx_version": "1-16-0"},
        "pipelineSpec": _spec("2.0.0", {"data_span": {"type": "STRING"}, "train_steps": {"type": "INT"}}),
        "runtimeConfig": {
            "gcsOutputDirectory": "gs://bucket/run/artifacts",
            "parameters": {"data_span": {"stringValue": ""}, "train_steps": {"intValue": "2000"}},
        },
    }


def kubeflow_spec() -> dict[str, Any]:
    """Content of a compiled pipeline for Kubeflow."""
    parameters = {
        "data_span": {"parameterType": "STRING", "defaultValue": "", "isOptional": True},
        "train_steps": {"parameterType": "NUMBER_INTEGER", "defaultValue": 2000.0, "isOptional": True},
    }
    return _spec("2.1.0", parameters) | {"sdkVersion": "tfx-1.16.0"}


def compiled(target: str) -> str:
    """Text of the compiled pipeline."""
    return json.dumps(vertex_job()) if target == "vertex" else yaml.safe_dump(kubeflow_spec())


def _spec(version: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "pipelineInfo": {"name": "digits"},
        "schemaVersion": version,
        "components": {"CocoExampleGen": {"executorLabel": "CocoExampleGen_executor"}},
        "deploymentSpec": {"executors": {"CocoExampleGen_executor": _CONTAINER}},
        "root": {"dag": {"tasks": copy.deepcopy(_TASKS)}, "inputDefinitions": {"parameters": parameters}},
    }
