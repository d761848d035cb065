"""Processes: who holds something, as other processes read it, also on other machines; children that end with us."""

import functools
import json
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

_MAX_COMMAND = 200  # characters of a command line
# Linux ends the process with its parent (PR_SET_PDEATHSIG = 1), and keeps that over `exec`. A program of its
# own sets it: in a fork of this process, other threads may hold locks that the call needs.
_TIED = """
import ctypes, os, signal, sys
prctl = getattr(ctypes.CDLL(None), "prctl", None)
if prctl is not None:
    prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def tied(command: Sequence[str]) -> list[str]:
    """Returns a command line whose process the kernel kills when this one ends, even by SIGKILL (on Linux).

    The kernel ends it with the thread that starts it: that thread has to wait for it.

    Args:
        command: absolute path of a program, and its arguments.
    """
    return [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]


def this_process() -> dict[str, Any]:
    """Returns a record of this process, for `in_words` and `has_ended`."""
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        "machine": _machine(),
        "started": _started(os.getpid()),
    }


def encode_record(**more: str) -> bytes:
    """Returns a record of this process, with further fields, as JSON for `decode_record`."""
    return json.dumps(this_process() | more).encode()


def decode_record(content: bytes) -> dict[str, Any]:
    """Returns the record of a process; {}: the content is something else, or cut off."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def has_ended(record: Any) -> bool:
    """Returns whether a process has ended for certain: it ran on this machine, and is not there any more.

    Args:
        record: of `this_process`, from JSON; any other value counts as a living process.
    """
    try:
        if not _machine() or record["machine"] != _machine():
            return False
        return bool(record["started"] != _started(int(record["process"])))
    except (TypeError, KeyError, ValueError, OverflowError):
        return False


def in_words(record: Any) -> str:
    """Returns a record as words for a message; "another process" if it is no record of `this_process`."""
    try:
        command = str(record["command"])
        if len(command) > _MAX_COMMAND:
            command = f"{command[:_MAX_COMMAND]}..."
        words = f"process {int(record['process'])} on {record['host']}, since {record['since']} ({command})"
    except (TypeError, KeyError, ValueError):
        return "another process"
    return "".join(character if character.isprintable() else "?" for character in words)


@functools.cache
def _machine() -> str:
    """This start of this machine, and the name space of its process numbers; "": not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(process: int) -> str:
    """Returns the start time of a process in the kernel's units, as ids are used again; "": no process."""
    try:
        status = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return ""
    fields = status.rpartition(b")")[2].split()  # the program's name may have spaces
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
