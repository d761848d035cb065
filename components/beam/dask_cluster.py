"""A Dask cluster as Beam's workers: its connection, its workers and their versions, the task of a worker."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from distributed import Client, secede
from distributed.comm import get_address_host, get_address_host_port
from distributed.security import Security
from distributed.utils import get_ip
from distributed.versions import get_versions

from schemas.errors import CocoflowError, ConfigError
from schemas.program import PROGRAM
from schemas.quoting import one_line

ADDRESS_OPTION, HOST_OPTION = "--dask_client_address", "--dask_driver_host"
_PACKAGES = (PROGRAM, "apache-beam")
_ANSWER = 20.0  # seconds in which a scheduler and its workers have to answer
_HANDSHAKE = 1 << 20  # bytes; more than Dask's first message has
_RESTART = 15.0  # seconds in which a lost worker may come back, where it was the last one

_HARNESS = "components.beam.fn_api"  # by name: the Dask worker itself does not import Beam
_CONNECT = 20.0  # seconds for a worker to reach the driver

log = logging.getLogger("cocoflow.beam")


class WorkerLostError(CocoflowError):
    """A worker ended, or no longer answers."""


@dataclass(frozen=True)
class Worker:
    """A worker process of the cluster.

    address: such as `tcp://10.0.0.2:40123`.
    name: for messages.
    """

    address: str
    name: str

    def __str__(self) -> str:
        return self.address if self.name == self.address else f"{self.name} ({self.address})"


class Cluster:
    """The connection to a Dask cluster; use as a context.

    Args:
        address: of the scheduler.
        driver_host: address of this machine for the workers; None: that of the route to them.

    Raises:
        ConfigError: there is no address, or an invalid one.
        CocoflowError: no scheduler answers there.
    """

    def __init__(self, address: str | None, driver_host: str | None) -> None:
        for name in ("distributed", "distributed.client"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # we report the loss of a worker or of the scheduler
        host, port = _parse_address(address or "")
        if driver_host:
            _require_own(driver_host)
        self._driver_host = driver_host
        self.address = str(address)
        tls = self.address.startswith("tls://")
        try:
            if tls and Security().get_connection_args("client")["ssl_context"] is None:
                raise ConnectionError("Dask's configuration has no certificates: distributed.comm.tls")
            # Dask itself tries a refused connection until its time is over, waits for ever for a silent server, and
            # makes room for as many bytes as the first eight of an answer say.
            with socket.create_connection((host, port), timeout=_ANSWER) as probe:
                if not tls and int.from_bytes(probe.recv(8), "little") > _HANDSHAKE:
                    raise ConnectionError("the answer is not that of a scheduler")
            self.client = Client(address, timeout=_ANSWER, set_as_default=False)
        except Exception as error:  # any kind: Dask raises AssertionError, too
            raise CocoflowError(
                f"{address}: no Dask scheduler answers ({type(error).__name__}: {one_line(error)}). Start one with "
                f"`dask scheduler`, and name its address, not that of its dashboard, in {ADDRESS_OPTION}."
            ) from error

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close(timeout=_ANSWER)

    def workers(self, *, without: Collection[Worker] = ()) -> list[Worker]:
        """Returns the running workers, each with this process's versions of Python, Beam and Cocoflow.

        Leaves out those that do not answer, with a warning.

        Args:
            without: workers that were lost; if no other answers, waits some seconds for a restarted one.

        Raises:
            CocoflowError: there is no worker, none answers, or one has other versions.
        """
        deadline = time.monotonic() + (_RESTART if without else 0)
        while True:
            # The scheduler lists a worker that died for a while.
            found = [worker for worker in self._running() if worker not in without]
            answers = dict(zip(found, self.client.sync(self._packages, found) if found else (), strict=True))
            answering = {worker: packages for worker, packages in answers.items() if packages is not None}
            if answering or time.monotonic() >= deadline:
                break
            time.sleep(0.5)
        if not found:
            raise CocoflowError(
                f"{self.address}: the Dask scheduler has no {'other ' if without else ''}worker. "
                f"Start some in this environment: `dask worker {self.address} --nworkers -1 --nthreads 1`."
            )
        silent = [worker for worker in found if worker not in answering]
        if not answering:
            raise CocoflowError(f"No Dask worker answers: {_list_workers(silent)}. Restart them.")
        if silent:
            log.warning("Ignoring Dask workers that do not respond: %s.", _list_workers(silent))
        _require_versions(answering)
        return list(answering)

    def host_for(self, workers: Iterable[Worker]) -> str:
        """Returns the address of this machine for workers; without a given one, loopback only if all are here."""
        if self._driver_host:
            return self._driver_host
        hosts = [get_ip(get_address_host(worker.address)) for worker in workers]
        return str(min(hosts, key=lambda host: ip_address(host).is_loopback))

    def entries(self) -> dict[str, dict[str, Any]]:
        """Returns what the scheduler knows of each worker, by address."""
        scheduler: Any = self.client.scheduler  # the client's own methods wait for ever for a worker that hangs
        try:
            identity = self.client.sync(scheduler.identity, n_workers=-1, callback_timeout=_ANSWER)
        except (OSError, TimeoutError) as error:
            raise CocoflowError(
                f"{self.address}: the Dask scheduler, or a worker, does not answer ({type(error).__name__}). "
                "See its log and its dashboard."
            ) from error
        workers: dict[str, dict[str, Any]] = identity["workers"]
        return workers

    def _running(self) -> Iterator[Worker]:
        for address, entry in self.entries().items():
            if entry["status"] == "running":
                yield Worker(address, str(entry["name"]))

    async def _packages(self, workers: Sequence[Worker]) -> list[dict[str, str | None] | None]:
        """Asks workers for their versions; None: a worker does not answer."""
        message = {"op": "versions", "packages": _PACKAGES}
        scheduler: Any = self.client.scheduler

        async def ask(worker: Worker) -> dict[str, str | None] | None:
            with contextlib.suppress(OSError, TimeoutError, KeyError):
                asked = scheduler.broadcast(msg=message, workers=[worker.address], on_error="ignore")
                packages: dict[str, str | None] = (await asyncio.wait_for(asked, _ANSWER))[worker.address]["packages"]
                return packages
            return None

        return await asyncio.gather(*map(ask, workers))


def run_harness(control_address: str, worker_id: str) -> None:
    """Runs a harness until the driver ends its stream; a task on a Dask worker.

    The harness has a process of its own: what DoFns import and allocate, such as a GPU's memory, is free again after
    their pipeline; and no DoFn continues to run, and to write, after its driver gave it up or its worker was killed.

    Args:
        control_address: HOST:PORT of the driver's server, an IPv6 address as [HOST]:PORT.
        worker_id: Beam's name of the harness.

    Raises:
        ConnectionError: this machine does not reach the driver.
        ChildProcessError: the harness failed; the worker's log has the reason.
    """
    secede()  # leaves the worker's thread to other tasks, such as the harness of another driver
    host, _, port = control_address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT).close()
    except OSError as error:
        raise ConnectionError(str(error)) from error
    command = [sys.executable, "-P", "-m", _HARNESS, control_address, worker_id]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as process:
        status = process.wait()  # without its driver, it ends within a minute
    if status:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        raise ChildProcessError(f"its harness {how}")


def _parse_address(address: str) -> tuple[str, int]:
    with contextlib.suppress(ValueError):
        host, port = get_address_host_port(address, strict=True)
        if host and address.startswith(("tcp://", "tls://")) and 0 < port < 2**16:
            return host, port
    raise ConfigError(
        f"--runner=dask: {ADDRESS_OPTION} is {f'not an address: {address}' if address else 'missing'}. "
        f"Name the scheduler: {ADDRESS_OPTION}=tcp://HOST:8786, or tls:// with certificates."
    )


def _require_own(host: str) -> None:
    """Requires one address of this machine: not 0.0.0.0, at which it would listen for everyone."""
    with contextlib.suppress(OSError, UnicodeError):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family) as server:
            if not ip_address(server.getsockname()[0]).is_unspecified:
                return
    raise ConfigError(f"{HOST_OPTION}={host}: not an address of this machine. Name the one that the workers reach.")


def _require_versions(of_workers: Mapping[Worker, dict[str, str | None]]) -> None:
    own = _versions(get_versions(_PACKAGES)["packages"])
    for worker, packages in of_workers.items():
        if packages.get(PROGRAM) is None:
            raise CocoflowError(
                f"{worker}: the Dask worker's environment has no Cocoflow. "
                "Start workers in an environment, or a container, where this version of Cocoflow is installed."
            )
        if (there := _versions(packages)) != own:
            raise CocoflowError(
                f"{worker}: the Dask worker has {there}, but this process {own}. "
                "Start all workers in the same environment, or with the same image, as this process."
            )


def _list_workers(workers: Iterable[Worker]) -> str:
    return ", ".join(map(str, workers))


def _versions(packages: dict[str, str | None]) -> str:
    python = ".".join(str(packages["python"]).split(".")[:2])
    return f"Python {python}, Beam {packages['apache-beam']}, Cocoflow {packages[PROGRAM]}"
