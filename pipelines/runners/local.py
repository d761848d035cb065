"""Runners of `run --runner` in this process: LocalDagRunner and BeamDagRunner."""

import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline

# TFX's class by the runner's name: one runs the components one after the other, one as a Beam pipeline.
RUNNERS = {
    "local": "tfx.orchestration.local.local_dag_runner:LocalDagRunner",
    "beam": "tfx.orchestration.beam.beam_dag_runner:BeamDagRunner",
}


def run_pipeline(runner: str, pipeline: "Pipeline", run_id: str) -> None:
    """Runs a pipeline in this process to its end.

    Args:
        runner: key of `RUNNERS`.
        pipeline: the pipeline.
        run_id: id of the form RUN.ATTEMPT; a runner does not return the id that it generates.
    """
    from apache_beam.options.pipeline_options import StandardOptions
    from tfx.dsl.compiler.compiler import Compiler
    from tfx.dsl.compiler.constants import PIPELINE_RUN_ID_PARAMETER_NAME
    from tfx.orchestration.portable.runtime_parameter_utils import substitute_runtime_parameter

    from components.beam.pipelines import IN_MEMORY_RUNNER

    # BeamDagRunner takes no options, and an option for TFX's components would have each package TFX anew.
    StandardOptions.DEFAULT_RUNNER = IN_MEMORY_RUNNER
    compiled = Compiler().compile(pipeline)
    substitute_runtime_parameter(compiled, {PIPELINE_RUN_ID_PARAMETER_NAME: run_id})
    pkgutil.resolve_name(RUNNERS[runner])().run_with_ir(compiled)
