"""Runners of `run --runner`: LocalDagRunner and BeamDagRunner."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline
    from tfx.orchestration.portable.tfx_runner import IrBasedRunner


def run_local(pipeline: "Pipeline", run_id: str) -> None:
    """Runs the components one after the other in this process, under an id of the form RUN.ATTEMPT."""
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    _run(LocalDagRunner(), pipeline, run_id)


def run_beam(pipeline: "Pipeline", run_id: str) -> None:
    """Runs the pipeline as a Beam pipeline, each component in a worker, under such an id."""
    from tfx.orchestration.beam.beam_dag_runner import BeamDagRunner

    _run(BeamDagRunner(), pipeline, run_id)


def _run(runner: "IrBasedRunner", pipeline: "Pipeline", run_id: str) -> None:
    """Runs under a given id, as a runner does not return the id that it generates."""
    from apache_beam.options.pipeline_options import StandardOptions
    from tfx.dsl.compiler.compiler import Compiler
    from tfx.dsl.compiler.constants import PIPELINE_RUN_ID_PARAMETER_NAME
    from tfx.orchestration.portable.runtime_parameter_utils import substitute_runtime_parameter

    from components.beam.pipelines import IN_MEMORY_RUNNER

    # BeamDagRunner takes no options, and an option for TFX's components would have each package TFX anew.
    StandardOptions.DEFAULT_RUNNER = IN_MEMORY_RUNNER
    compiled = Compiler().compile(pipeline)
    substitute_runtime_parameter(compiled, {PIPELINE_RUN_ID_PARAMETER_NAME: run_id})
    runner.run_with_ir(compiled)


class Runner(Protocol):
    """Runs pipelines in this process."""

    def __call__(self, pipeline: "Pipeline", run_id: str) -> None:
        """Runs a pipeline to its end, under an id in ML Metadata."""


RUNNERS: dict[str, Runner] = {"local": run_local, "beam": run_beam}
