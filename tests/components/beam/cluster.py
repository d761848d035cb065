"""A Dask cluster on loopback: a scheduler and workers, each a process that tests may stop and kill."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from distributed import Client

# For processes that import this copy of the repository, whichever is installed.
PATH = {"PYTHONPATH": str(Path(__file__).parents[3])}
_START = 120.0  # seconds; on a busy machine a process takes long


@dataclass(frozen=True)
class DaskCluster:
    """A running cluster.

    address: of its scheduler.
    scheduler: its process.
    workers: name -> process that was started: the nanny, where workers have one.
    folder: holds a folder of each worker, which it works in, and the processes' logs, NAME.log.
    """

    address: str
    scheduler: psutil.Process
    workers: dict[str, psutil.Process]
    folder: Path

    @property
    def beam_args(self) -> list[str]:
        """`run.beam_args` for this cluster."""
        return ["--runner=dask", f"--dask_client_address={self.address}"]

    def signal(self, name: str, number: int) -> None:
        """Sends a signal to all processes of a worker, as if to its machine."""
        for one in [*self.workers[name].children(recursive=True), self.workers[name]]:
            one.send_signal(number)

    def processes(self) -> dict[str, psutil.Process]:
        """Returns the process of each connected worker, by name: the nanny's child, where there is a nanny."""
        with Client(self.address, set_as_default=False) as client:
            pids = client.run(os.getpid)
            workers = client.scheduler_info(n_workers=-1)["workers"]
        return {workers[address]["name"]: psutil.Process(pid) for address, pid in pids.items()}


@contextmanager
def dask_cluster(
    folder: Path,
    names: Sequence[str] = ("w0", "w1"),
    *,
    host: str = "127.0.0.1",
    nanny: bool = False,
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Iterator[DaskCluster]:
    """Starts a scheduler and workers, each with one thread and folders of its own, and ends them after the block.

    Args:
        folder: new folder for working folders and logs.
        names: one worker each.
        host: address at which all listen.
        nanny: whether a second process restarts a killed worker.
        environment: variables of the workers; those of this process come first.
        options: of `dask worker`.
    """
    folder.mkdir(parents=True)
    file = folder / "scheduler.json"
    with ExitStack() as ends:

        def start(name: str, *arguments: str, variables: Mapping[str, str] | None = None) -> psutil.Process:
            own = folder / name
            (own / "tmp").mkdir(parents=True)
            apart = {"TMPDIR": str(own / "tmp"), "COCOFLOW_CACHE": str(own / "cache")}
            log = ends.enter_context((folder / f"{name}.log").open("wb"))
            process = psutil.Popen(
                [sys.executable, "-m", "dask", *arguments, "--no-dashboard"],
                cwd=own,
                env=os.environ | PATH | apart | dict(variables or {}),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            ends.callback(_end, process)
            return process

        here = ["--host", host, "--scheduler-file", str(file)]
        scheduler = start("scheduler", "scheduler", *here, "--port", "0", "--dashboard-address", "127.0.0.1:0")
        kind = "--nanny" if nanny else "--no-nanny"
        workers = {
            name: start(
                name,
                *["worker", *here, kind, "--nthreads", "1", "--memory-limit", "0", "--name", name],
                *["--local-directory", str(folder / name), *options],
                variables=environment,
            )
            for name in names
        }
        deadline = time.monotonic() + _START
        while not file.exists():
            assert time.monotonic() < deadline, (folder / "scheduler.log").read_text()
            time.sleep(0.1)
        with Client(scheduler_file=str(file), timeout=_START, set_as_default=False) as client:
            client.wait_for_workers(len(names), timeout=_START)
            address = client.scheduler.address
        yield DaskCluster(address, scheduler, workers, folder)


def _end(process: "psutil.Popen") -> None:
    """Kills a process and its children; a stopped one too."""
    for one in [*process.children(recursive=True), process] if process.poll() is None else []:
        one.kill()
    process.wait()
