"""Handles Ctrl-C and SIGTERM: an orderly end with one line, or a forced end after some seconds."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_SHELL_OFFSET = 128  # shells report 128 + N for a process ended by signal N

_PATIENCE_SECONDS = 10.0  # allowed for an orderly end; container platforms kill after 10 to 30
_SAME_SECONDS = 1.0  # a second signal within this time is the first one, forwarded by a parent process
_LAST_SECONDS = 3.0  # allowed for the interpreter's shutdown
_SHOW_CURSOR = b"\x1b[?25h"  # progress bars hide it


class StopSignals:
    """The signals that end a program, with its last message and exit code.

    Attributes:
        received: number of the first signal; None: none yet.
        resumes: whether the program continues where it ended when it is called again, for the message.

    The first signal raises `KeyboardInterrupt` in the main thread.  If the process continues,
    as in a long call into C++ or because a library drops the exception, it ends at the
    second signal, or after ten seconds: no file on the disk relies on an orderly end.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._raised = False
        self.resumes = False

    @property
    def word(self) -> str:
        """The message for the user."""
        word = _WORDS[signal.Signals(self.received or signal.SIGINT)]
        return f"{word}; the same command continues from here" if self.resumes else word

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM."""
        return _SHELL_OFFSET + (self.received or signal.SIGINT)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Python's signal handler."""
        self.received = self.received or number
        if not self._raised:
            self._raised = True
            raise KeyboardInterrupt

    def force_end(self, numbers: socket.socket, terminal: int) -> None:
        """Ends the process if `handle` does not; runs in a thread of its own.

        Args:
            numbers: signal numbers as they arrive, a byte each; its end ends the thread.
            terminal: descriptor for the last message.
        """
        with numbers:
            if not self._is_time(numbers):
                return
        cursor = _SHOW_CURSOR if os.isatty(terminal) else b""
        with contextlib.suppress(OSError):
            os.write(terminal, cursor + f"{self.word}\n".encode())
        os._exit(self.exit_code)

    def _is_time(self, numbers: socket.socket) -> bool:
        """Waits; returns True to end the process, False at the end of `numbers`."""
        began = None
        while True:
            numbers.settimeout(None if began is None else max(0.01, began + _PATIENCE_SECONDS - time.monotonic()))
            try:
                received = numbers.recv(1)
            except TimeoutError:
                return True
            if not received:
                return False
            if began is None and received[0] in _WORDS:
                self.received = self.received or received[0]
                began = time.monotonic()
            elif began is not None and time.monotonic() - began > _SAME_SECONDS:
                return True


@contextlib.contextmanager
def stop_signals() -> Iterator[StopSignals]:
    """Handles SIGINT and SIGTERM in the block, except signals that the process was started to ignore.

    Changes nothing outside the main thread, the only one in which Python handles signals.
    """
    stop = StopSignals()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    numbers, sender = socket.socketpair()
    sender.setblocking(False)
    terminal = os.dup(2)
    before = {number: signal.getsignal(number) for number in _WORDS}
    handled = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    threading.Thread(target=stop.force_end, args=(numbers, terminal), daemon=True).start()
    former = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    try:
        for number in handled:
            signal.signal(number, stop.handle)
        yield stop
    finally:
        for number in handled:
            if signal.getsignal(number) == stop.handle:
                signal.signal(number, before[number])
        signal.set_wakeup_fd(former)
        sender.close()
        os.close(terminal)


def end_soon(exit_code: int) -> None:
    """Ends the process within seconds, as the interpreter would wait for the threads of libraries."""
    for number in _WORDS:
        signal.signal(number, signal.SIG_IGN)
    last = threading.Timer(_LAST_SECONDS, os._exit, [exit_code])
    last.daemon = True
    last.start()


def _default_in_child() -> None:
    """Resets SIGTERM in forked children, which their parent ends by signals."""
    if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), StopSignals):
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_default_in_child)
