"""Beam runners that stand for those of others."""

from typing import Any

from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.runners.runner import PipelineResult, PipelineRunner, PipelineState


class RightRunner(FnApiRunner):
    """A runner of another name that runs pipelines."""


class FailingRunner(FnApiRunner):
    """A runner whose cluster is not there."""

    def run_pipeline(self, pipeline: Any, options: Any) -> Any:
        raise RuntimeError("no cluster\nat localhost:8081")


class IdleRunner(PipelineRunner):
    """A runner that runs nothing and reports success."""

    def run_pipeline(self, pipeline: Any, options: Any) -> "_Done":
        return _Done(PipelineState.DONE)


class StockDaskRunner(PipelineRunner):
    """What Beam's own DaskRunner makes of a pipeline, computed in this process."""

    def is_fnapi_compatible(self) -> bool:
        return False

    def run_pipeline(self, pipeline: Any, options: Any) -> "_Done":
        # Its options clash with ours once both are imported.
        from apache_beam.runners.dask.dask_runner import DaskRunner
        from apache_beam.runners.dask.overrides import dask_overrides

        pipeline.replace_all(dask_overrides())
        visitor = DaskRunner.to_dask_bag_visitor()
        pipeline.visit(visitor)
        list(visitor.bags.values())[-1].compute(scheduler="synchronous")
        return _Done(PipelineState.DONE)


class _Done(PipelineResult):
    def wait_until_finish(self, duration: int | None = None) -> str:
        return str(self.state)
