"""The task that runs a Beam SDK harness on a Dask worker.

A worker imports a task's module in its event loop, and sends no heartbeat meanwhile.  So this module imports Beam
only in the task, whose thread leaves the worker its heartbeats.
"""

from distributed import secede


def run_harness(control_address: str, worker_id: str) -> None:
    """Runs a Beam SDK harness until the driver ends its stream."""
    secede()  # leaves the worker's thread to other tasks, such as the harness of another driver
    from apache_beam.runners.portability.fn_api_runner import worker_handlers
    from apache_beam.runners.worker import sdk_worker

    sdk_worker.SdkHarness(
        control_address,
        worker_id=worker_id,
        state_cache_size=worker_handlers.STATE_CACHE_SIZE_MB << 20,
        data_buffer_time_limit_ms=0,  # Beam's timed buffer loses data: a thread flushes it without a lock
        runner_capabilities=worker_handlers.FNAPI_RUNNER_CAPABILITIES,
    ).run()
