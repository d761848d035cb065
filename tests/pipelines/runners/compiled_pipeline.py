"""Executes a compiled pipeline as a backend does: each task's command line in a process of its own.

The processes run in an empty folder, without the environment variables of this one, in an
environment that has the built wheel in place of the repository.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

from tests.forked_calls import forked_programs

# What every task imports of the dependencies.
_IMPORTS = ("tfx.v1", "tfx.components.evaluator.executor", "kfp.pipeline_spec.pipeline_spec_pb2")
# `python -m` in a working folder: the arguments after `-m`, the file for all output, the container's own variables;
# returns the exit code.
_RunModule = Callable[[Path, Sequence[str], Path, Mapping[str, str]], int]


class TaskError(Exception):
    """A task's process failed; the text is the end of what it wrote."""


class CompiledPipeline:
    """A compiled pipeline and the backend that runs it.

    Args:
        path: the compiled file.
        programs: folder with `python`.
        root: URI of the pipeline root, such as a folder; every run gets its own folder below it.
        scratch: empty local folder, for the working folders of the tasks.
        environment: variables of the tasks, besides PATH and HOME.
        runs_drivers: whether the backend runs the driver of a task before its executor.
        forks: whether the processes are forked from one that has imported the dependencies, which saves ten seconds
            per process; otherwise each starts Python, as in a container.
    """

    def __init__(
        self,
        path: Path,
        *,
        programs: Path,
        root: str,
        scratch: Path,
        environment: Mapping[str, str] | None = None,
        runs_drivers: bool = True,
        forks: bool = False,
    ) -> None:
        document = next(yaml.safe_load_all(path.read_text()))
        self.spec: dict[str, Any] = document.get("pipelineSpec", document)
        self._values = document.get("runtimeConfig", {}).get("parameters", {})
        self._programs = programs
        self._root = root
        self._scratch = scratch
        home = scratch / "home"
        home.mkdir(parents=True, exist_ok=True)
        self._environment = {"PATH": f"{programs}:{os.defpath}", "HOME": str(home), **(environment or {})}
        self._runs_drivers = runs_drivers
        self._forks = forks
        self._runs = 0

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks, producers first."""
        tasks = self.spec["root"]["dag"]["tasks"]
        graph = {
            name: {*task.get("dependentTasks", []), *(producer for producer, _ in _producers(task).values())}
            for name, task in sorted(tasks.items())
        }
        return list(TopologicalSorter(graph).static_order())

    def run(self, **submitted: Any) -> dict[str, dict[str, Any]]:
        """Runs all tasks; returns each one's output artifacts.

        Args:
            submitted: values of parameters.

        Raises:
            TaskError: a task failed; those after it did not run.
        """
        self._runs += 1
        outputs: dict[str, dict[str, Any]] = {}
        with self._python() as run_module:
            for name in self.tasks:
                outputs[name] = self._run_task(name, self._parameters(submitted), outputs, run_module)
        return outputs

    def _parameters(self, submitted: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of the pipeline's parameters, as the schema version writes them."""
        described = self.spec["root"]["inputDefinitions"]["parameters"]
        assert set(submitted) <= set(described)
        if self._is_2_1:
            defaults = {name: one["defaultValue"] for name, one in described.items()}
            return {**defaults, **submitted}
        return self._values | {name: _value_2_0(value) for name, value in submitted.items()}

    @property
    def _is_2_1(self) -> bool:
        return bool(self.spec["schemaVersion"] == "2.1.0")

    def _python(self) -> AbstractContextManager[_RunModule]:
        if self._forks:
            return forked_programs(self._programs / "python", *_IMPORTS, environment=self._environment)
        return nullcontext(self._start_module)

    def _start_module(self, folder: Path, arguments: Sequence[str], log: Path, variables: Mapping[str, str]) -> int:
        command = [str(self._programs / "python"), "-m", *arguments]
        with log.open("w") as output:
            return subprocess.run(
                command,
                cwd=folder,
                env={**self._environment, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode

    def _run_task(
        self, name: str, parameters: Mapping[str, Any], outputs: Mapping[str, dict[str, Any]], run_module: _RunModule
    ) -> dict[str, Any]:
        task = self.spec["root"]["dag"]["tasks"][name]
        component = self.spec["components"][task["componentRef"]["name"]]
        container = self.spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        folder = f"{self._root}/pipeline/{self._runs}/{name}"
        made = {
            key: {"name": f"artifacts/{self._runs}-{name}-{key}", "uri": f"{folder}/{key}", "type": one["artifactType"]}
            for key, one in component["outputDefinitions"]["artifacts"].items()
        }
        key = "parameterValues" if self._is_2_1 else "parameters"
        executor_input = {
            "inputs": {
                key: {name: _given(one, parameters) for name, one in task["inputs"].get("parameters", {}).items()},
                "artifacts": {
                    name: {"artifacts": [outputs[producer][output]]}
                    for name, (producer, output) in _producers(task).items()
                },
            },
            "outputs": {
                "artifacts": {name: {"artifacts": [artifact]} for name, artifact in made.items()},
                "outputFile": f"{folder}/executor_output.json",
            },
        }
        hook = container.get("lifecycle", {}).get("preCacheCheck")
        if hook and self._runs_drivers:
            self._execute(run_module, f"{name}-driver", hook, executor_input, {})
        variables = {variable["name"]: variable["value"] for variable in container.get("env", [])}
        self._execute(run_module, name, container, executor_input, variables)
        written = json.loads(self.read(f"{folder}/executor_output.json"))["artifacts"]
        # What an executor does not say about an artifact stays as it was.
        return {name: artifact | written[name]["artifacts"][0] for name, artifact in made.items()}

    def read(self, uri: str) -> bytes:
        """Reads a file that a task wrote."""
        from tfx.dsl.io import fileio

        with fileio.open(uri, "rb") as file:
            return bytes(file.read())

    def _execute(
        self,
        run_module: _RunModule,
        name: str,
        container: Mapping[str, Any],
        executor_input: Mapping[str, Any],
        variables: Mapping[str, str],
    ) -> None:
        folder = self._scratch / f"{self._runs}-{name}"
        folder.mkdir()
        log = folder.with_suffix(".log")
        command = [*container["command"], *container["args"]]
        filled = [part.replace("{{$}}", json.dumps(executor_input)) for part in command]
        assert not [part for part in filled if "{{$" in part]
        assert filled[:2] == ["python", "-m"]
        if code := run_module(folder, filled[2:], log, variables):
            raise TaskError(f"{name} ended with {code}:\n{log.read_text()[-4000:]}")


def _producers(task: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Returns task and output of each input artifact."""
    return {
        name: (one["taskOutputArtifact"]["producerTask"], one["taskOutputArtifact"]["outputArtifactKey"])
        for name, one in task.get("inputs", {}).get("artifacts", {}).items()
    }


def _given(parameter: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    if "componentInputParameter" in parameter:
        return values[parameter["componentInputParameter"]]
    value = parameter["runtimeValue"]
    return value["constantValue"] if "constantValue" in value else value["constant"]


def _value_2_0(value: Any) -> dict[str, str]:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}
