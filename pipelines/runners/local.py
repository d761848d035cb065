"""Runners of `run --runner`: LocalDagRunner and BeamDagRunner."""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline
    from tfx.orchestration.portable.tfx_runner import IrBasedRunner


def run_local(pipeline: "Pipeline") -> str:
    """Runs the components one after the other in this process; returns the id of the run."""
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    return _run(LocalDagRunner(), pipeline)


def run_beam(pipeline: "Pipeline") -> str:
    """Runs the pipeline as a Beam pipeline, each component in a worker; returns the id of the run."""
    from tfx.orchestration.beam.beam_dag_runner import BeamDagRunner

    return _run(BeamDagRunner(), pipeline)


def _run(runner: "IrBasedRunner", pipeline: "Pipeline") -> str:
    """Runs under an id chosen here, as a runner does not return the id that it generates."""
    from tfx.dsl.compiler.compiler import Compiler
    from tfx.dsl.compiler.constants import PIPELINE_RUN_ID_PARAMETER_NAME
    from tfx.orchestration.portable.runtime_parameter_utils import substitute_runtime_parameter

    run_id = datetime.now().astimezone().isoformat()
    compiled = Compiler().compile(pipeline)
    substitute_runtime_parameter(compiled, {PIPELINE_RUN_ID_PARAMETER_NAME: run_id})
    runner.run_with_ir(compiled)
    return run_id


RUNNERS: dict[str, Callable[["Pipeline"], str]] = {"local": run_local, "beam": run_beam}
