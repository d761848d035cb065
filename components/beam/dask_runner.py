"""Runs Beam pipelines on the workers of a Dask cluster: `--runner=dask`.

Beam's `FnApiRunner` plans the stages and keeps what passes between them, in this process: the driver.  Its SDK
harnesses, which run the DoFns, are tasks on the Dask workers, one on each, and connect to the driver by gRPC.
"""

import logging
from argparse import ArgumentParser
from typing import Any

from apache_beam.options.pipeline_options import PipelineOptions

from components.beam.dask_cluster import ADDRESS_OPTION, HOST_OPTION, Cluster, Worker, WorkerLostError
from components.beam.dask_harnesses import DaskHarnesses
from components.beam.fn_api import HarnessRunner
from schemas.errors import CocoflowError

_RERUNS = 2  # restarts of a pipeline that lost a worker

log = logging.getLogger("cocoflow.beam")


class DaskOptions(PipelineOptions):
    """Options of `--runner=dask`: addresses of the scheduler and of this machine."""

    @classmethod
    def _add_argparse_args(cls, parser: ArgumentParser) -> None:
        parser.add_argument(ADDRESS_OPTION, help="address of the Dask scheduler, such as tcp://HOST:8786")
        parser.add_argument(
            HOST_OPTION, help="address of this machine for the workers (default: that of the route to them)"
        )


class DaskRunner(HarnessRunner):
    """Beam's runner in memory, with SDK harnesses on the workers of a Dask cluster.

    A pipeline that loses a worker runs again on the others, twice at most.  As on other runners, a DoFn may
    therefore see an element more than once.

    restarts: how often the pipeline started again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._harnesses: DaskHarnesses | None = None
        self.restarts = 0

    def run_pipeline(self, pipeline: Any, options: PipelineOptions) -> Any:
        """Runs a pipeline.

        Raises:
            ConfigError: `--dask_client_address` or `--dask_driver_host` is wrong.
            CocoflowError: the cluster cannot be used; workers were lost in three attempts, or the last one was.
        """
        given = options.view_as(DaskOptions)
        with Cluster(given.dask_client_address, given.dask_driver_host) as self._cluster:
            return super().run_pipeline(pipeline, options)

    def run_via_runner_api(self, pipeline_proto: Any, options: PipelineOptions) -> Any:
        """Runs a pipeline, again if a worker is lost."""
        lost: list[Worker] = []
        workers = self._cluster.workers()
        while True:
            with DaskHarnesses(self._cluster, workers) as self._harnesses:
                try:
                    return self.run_on(self._harnesses, pipeline_proto, options)
                except Exception as error:
                    failure = self._harnesses.failure_behind(error)
                    if failure is None:
                        raise
                    lost += self._harnesses.lost
                    if not isinstance(failure, WorkerLostError) or self.restarts == _RERUNS:
                        raise failure from error
            try:
                workers = self._cluster.workers(without=lost)
            except CocoflowError as error:
                raise CocoflowError(f"{failure} {error}") from error
            self.restarts += 1
            log.warning("%s The pipeline starts again; workers: %d.", failure, len(workers))

    def progress(self) -> str:
        """Returns how many workers are busy; empty before the start."""
        return "" if self._harnesses is None else self._harnesses.progress()
