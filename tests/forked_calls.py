"""Calls in processes of their own that tests may kill, forked from one that has imported what takes long.

`python -m tests.forked_calls MODULE...` imports the modules.  Each line on stdin, a JSON object
{"function": "module:name", "arguments": [...]}, forks a process that waits for another line
and calls; it tells its process id, and `ended` with its exit status.
"""

import importlib
import json
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ForkedCalls:
    """The process that forks."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, function: str, *arguments: Any, prepare: Callable[[int], object] = id) -> int:
        """Calls a function in a new process; returns its exit code: 1 after an exception.

        Args:
            function: `module:name`.
            arguments: of the function, as JSON has them.
            prepare: is called with the process id before the call begins.

        Raises:
            AssertionError: the process ended in another way than by itself or SIGKILL.
        """
        assert self._process.stdin is not None
        call = {"function": function, "arguments": arguments}
        print(json.dumps(call), file=self._process.stdin, flush=True)
        said = []
        for line in self._process.stdout or []:
            said.append(line)
            if match := re.match(r"pid (\d+)", line):
                prepare(int(match[1]))
                print("go", file=self._process.stdin, flush=True)
            elif match := re.match(r"ended (-?\d+)", line):
                logging.getLogger(__name__).info("%s", "".join(said))
                assert int(match[1]) in (0, 1, -signal.SIGKILL), "".join(said)
                return int(match[1])
        raise AssertionError("".join(said))


@contextmanager
def forked_calls(*modules: str, environment: Mapping[str, str] | None = None) -> Iterator[ForkedCalls]:
    """Starts the process, with the environment of this one, and ends it after the block.

    Args:
        modules: to import before the first call.
        environment: variables that this process's environment lacks.
    """
    command = [sys.executable, "-m", "tests.forked_calls", *modules]
    with _started(command, os.environ | (environment or {})) as calls:
        yield calls


@contextmanager
def forked_programs(
    python: Path, *modules: str, environment: Mapping[str, str]
) -> Iterator[Callable[[Path, Sequence[str], Path, Mapping[str, str]], int]]:
    """Starts the process with another environment's Python, without this one's variables and without the repository.

    Args:
        python: the interpreter.
        modules: to import before the first program.
        environment: all variables.

    Yields:
        A function that does what `python -m` does: it takes the working folder, the arguments after `-m`, a new file
        for all output and further variables, and returns the exit code.
    """
    with _started([str(python), "-P", __file__, *modules], environment) as calls:
        yield lambda folder, arguments, log, variables: calls(
            "__main__:_run_module", str(folder), list(arguments), str(log), dict(variables)
        )


@contextmanager
def _started(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[ForkedCalls]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            yield ForkedCalls(process)
        finally:
            process.kill()


def _run_module(folder: str, arguments: list[str], log: str, variables: dict[str, str]) -> None:
    """Runs a module as `python -m` does; its output goes to a file."""
    with Path(log).open("w") as output:
        sys.stdout.flush()
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv = arguments
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise


def _call_in_child(function: str, arguments: list[Any]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        print(f"pid {os.getpid()}", flush=True)
        sys.stdin.readline()
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)(*arguments)
        sys.stdout.flush()
        os._exit(0)
    except BaseException:
        logging.exception("the call failed")
        os._exit(1)


if __name__ == "__main__":
    for one in sys.argv[1:]:
        importlib.import_module(one)
    while line := sys.stdin.readline():
        _, status = os.waitpid(_call_in_child(**json.loads(line)), 0)
        print(f"\nended {os.waitstatus_to_exitcode(status)}", flush=True)
