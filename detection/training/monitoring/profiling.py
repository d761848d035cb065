"""TensorFlow's profiler over a window of steps."""

from pathlib import Path
from types import TracebackType

import tensorflow as tf


class ProfilerWindow:
    """Profiles some steps; a context, so that a run that ends within the window still writes what was seen.

    Args:
        start_step: steps done when it starts.
        stop_step: steps done when it stops.
        logs: TensorBoard's folder.
    """

    def __init__(self, *, start_step: int, stop_step: int, logs: Path) -> None:
        self.stops = (start_step, stop_step)
        self._logs = logs
        self._running = False

    def see(self, step: int) -> None:
        """Starts or stops it, if `step` steps done ask for that; a run that begins later never starts it."""
        start, stop = self.stops
        if step == start:
            tf.profiler.experimental.start(str(self._logs))
            self._running = True
        elif step >= stop:
            self._end()

    def _end(self) -> None:
        if self._running:
            self._running = False
            tf.profiler.experimental.stop()

    def __enter__(self) -> "ProfilerWindow":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()
