"""Rules that make requests fail, and the log of requests."""

import os
import re
import signal
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

WRITE_METHODS = {"POST", "PUT", "PATCH", "DELETE"}


@dataclass
class Rule:
    """Makes some of the matching requests fail.

    Attributes:
        action: `status` answers with `status`; `reset` cuts the connection; `kill` sends SIGKILL to
            `process` and cuts the connection; `delay` waits `seconds` and goes on.
        method: one of HTTP's, or `write`: any that changes objects; "": any.
        path: regular expression that is searched in the request's target without escapes, where the names
            of uploaded objects stand as `name=`.
        skip: matching requests that pass first.
        times: requests that fail then; 0: all.
        status: of the answer.
        after: the request takes effect first, and only its answer is lost or replaced.
        process: that `kill` kills.
        seconds: that `delay` waits.
    """

    action: str
    method: str = ""
    path: str = ""
    skip: int = 0
    times: int = 1
    status: int = 503
    after: bool = False
    process: int = 0
    seconds: float = 0.0
    seen: int = field(default=0)
    fired: int = field(default=0)

    def fires(self, method: str, target: str) -> bool:
        """Counts a request, and returns whether the rule makes it fail."""
        if self.method == "write":
            if method not in WRITE_METHODS:
                return False
        elif self.method not in ("", method):
            return False
        if re.search(self.path, target) is None:
            return False
        self.seen += 1
        if self.seen <= self.skip or (self.times and self.seen > self.skip + self.times):
            return False
        self.fired += 1
        return True


class Faults:
    """The rules in force, and what was requested."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._log: list[dict[str, Any]] = []

    def add(self, rule: dict[str, Any]) -> None:
        """Puts a rule in force."""
        with self._lock:
            self._rules.append(Rule(**rule))

    def clear(self) -> list[dict[str, Any]]:
        """Ends all rules and returns them with their counts."""
        with self._lock:
            rules, self._rules = self._rules, []
            return [asdict(rule) for rule in rules]

    def firing(self, method: str, target: str) -> Rule | None:
        """The rule that makes this request fail; None: none does.  Waits if a rule says so."""
        with self._lock:
            firing = [rule for rule in self._rules if rule.fires(method, target)]
        for rule in firing:
            if rule.action == "delay":
                time.sleep(rule.seconds)
        return next((rule for rule in firing if rule.action != "delay"), None)

    def log(self, entry: dict[str, Any]) -> None:
        """Notes a request."""
        with self._lock:
            self._log.append(entry)

    def take_log(self) -> list[dict[str, Any]]:
        """Returns the requests since the last call."""
        with self._lock:
            log, self._log = self._log, []
            return log


def kill(process: int) -> None:
    """Kills a process that may have ended."""
    if process > 1:
        os.kill(process, signal.SIGKILL)
