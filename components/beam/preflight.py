"""Checks the runner of `run.beam_args` before the work of a command."""

import contextlib
import io
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from schemas.errors import ConfigError
from schemas.program import require_module
from schemas.quoting import one_line

if TYPE_CHECKING:
    import apache_beam as beam

_DASK = "components.beam.dask_runner.DaskRunner"
_KNOWN = (
    "apache_beam.runners.portability.fn_api_runner.fn_runner.FnApiRunner",
    "apache_beam.runners.direct.direct_runner.SwitchingDirectRunner",
    "apache_beam.runners.dataflow.dataflow_runner.DataflowRunner",
)

log = logging.getLogger("cocoflow.beam")


def require_runner(beam_args: Sequence[str], folder: str) -> None:
    """Requires that the runner of Beam arguments works, without reading or writing anything of the user's.

    `--runner=dask` needs a scheduler, and workers with this process's versions.  Runners other than Beam's own in
    memory and on Dataflow have to run a small pipeline first: some lose data without an error.

    Args:
        beam_args: `run.beam_args`.
        folder: folder, new or not, that the workers reach, for files of that pipeline, which are removed.

    Raises:
        ConfigError: Beam refuses the arguments or does not know the runner, or a package is missing.
        CocoflowError: the Dask cluster cannot be used, or the runner fails or loses data.
    """
    if not beam_args:
        return
    if "--runner=dask" in beam_args:
        require_module("distributed")
    pipeline = _pipeline(beam_args)
    runner = f"{type(pipeline.runner).__module__}.{type(pipeline.runner).__name__}"
    if runner == _DASK:
        from components.beam.dask_cluster import Cluster
        from components.beam.dask_runner import DaskOptions

        given = pipeline.options.view_as(DaskOptions)
        log.info("Checking the Dask cluster")
        with Cluster(given.dask_client_address, given.dask_driver_host) as cluster:
            cluster.workers()
    elif runner not in _KNOWN:
        from components.beam.self_check import check_runner

        log.info("Checking %s with a small pipeline", runner)
        check_runner(pipeline, runner, folder)


def _pipeline(beam_args: Sequence[str]) -> "beam.Pipeline":
    from components.beam.pipelines import make_pipeline

    usage = io.StringIO()
    try:
        with contextlib.redirect_stderr(usage):  # argparse writes there, and ends the process
            pipeline = make_pipeline(beam_args)
            pipeline.options.get_all_options()
    except SystemExit:
        reason = usage.getvalue().strip().rpartition("error: ")[2]
    except Exception as error:  # any kind: the runner's import or its constructor fails
        reason = f"{type(error).__name__}: {error}"
    else:
        return pipeline
    raise ConfigError(f"run.beam_args: Beam refuses {' '.join(beam_args)}: {one_line(reason)}")
