"""The runners that `run --runner` knows."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline


def run_local(pipeline: "Pipeline") -> None:
    """Runs the components one after the other in this process."""
    from tfx.orchestration.local.local_dag_runner import LocalDagRunner

    LocalDagRunner().run(pipeline)


def run_beam(pipeline: "Pipeline") -> None:
    """Runs the pipeline itself as a Beam pipeline, each component in a worker of it."""
    from tfx.orchestration.beam.beam_dag_runner import BeamDagRunner

    BeamDagRunner().run(pipeline)


RUNNERS: dict[str, Callable[["Pipeline"], None]] = {"local": run_local, "beam": run_beam}
