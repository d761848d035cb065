"""Peak memory of a process and of those that it starts."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path


class PeakMemory:
    """A context that holds, after it ended, the peak memory in MB of this process and of those it started.

    own: of this process.
    others: of the others, greatest first.
    """

    def __init__(self) -> None:
        self.own = 0.0
        self.others: list[float] = []
        self._peaks: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()
        self.own = self._peaks.pop(os.getpid())
        self.others = sorted(self._peaks.values(), reverse=True)

    def _poll(self) -> None:
        while not self._ended.wait(0.2):
            self._look()

    def _look(self) -> None:
        for process in _descendants(os.getpid()):
            try:
                status = Path(f"/proc/{process}/status").read_text()
            except OSError:
                continue
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    self._peaks[process] = int(line.split()[1]) * 1024 / 1e6


def _descendants(process: int) -> Iterator[int]:
    """A process and all that it started."""
    yield process
    try:
        children = [Path(task, "children").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return
    for child in " ".join(children).split():
        yield from _descendants(int(child))
