"""Runs a Beam SDK harness for a Dask worker, in a process of its own.

What DoFns import and allocate, such as a GPU's memory, is free again after their pipeline; and no DoFn runs on, and
writes, after its driver gave it up or its worker was killed.
"""

import os
import socket
import subprocess
import sys
import threading
import traceback

_CONNECT = 20.0  # seconds


def run_harness(control_address: str, worker_id: str) -> None:
    """Runs a harness until the driver ends its stream; a task on a Dask worker.

    Args:
        control_address: HOST:PORT of the driver's server, an IPv6 address as [HOST]:PORT.
        worker_id: Beam's name of the harness.

    Raises:
        ConnectionError: this machine does not reach the driver.
        ChildProcessError: the harness failed; the worker's log has the reason.
    """
    from distributed import secede  # not in the harness

    secede()  # leaves the worker's thread to other tasks, such as the harness of another driver
    host, _, port = control_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
    except OSError as error:
        raise ConnectionError(str(error)) from error
    command = [sys.executable, "-P", "-m", __name__, control_address, worker_id]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as process:
        status = process.wait()  # without its driver, it ends within a minute
    if status:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        raise ChildProcessError(f"its harness {how}")


def _end_with_worker() -> None:
    """Ends this process when the worker's end closes the pipe."""
    sys.stdin.buffer.read()
    os._exit(1)


def _main(control_address: str, worker_id: str) -> None:
    threading.Thread(target=_end_with_worker, daemon=True).start()
    from apache_beam.runners.portability.fn_api_runner import worker_handlers
    from apache_beam.runners.worker.sdk_worker import SdkHarness

    status = 0
    try:
        SdkHarness(
            control_address,
            worker_id=worker_id,
            state_cache_size=worker_handlers.STATE_CACHE_SIZE_MB << 20,
            data_buffer_time_limit_ms=0,  # Beam's timed buffer loses data: a thread flushes it without a lock
            runner_capabilities=worker_handlers.FNAPI_RUNNER_CAPABILITIES,
        ).run()
    except BaseException:
        traceback.print_exc()  # into the worker's log
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # without waiting for threads of DoFns


if __name__ == "__main__":
    _main(*sys.argv[1:])
