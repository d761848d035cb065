"""A headless browser for tests: Chromium, spoken to over pipes in its DevTools protocol.

Pipes need no port, no driver and no library.  `--remote-debugging-pipe`: Chromium reads
commands from descriptor 3 and writes answers and events to 4, JSON texts that end in NUL.
Protocol: https://chromedevtools.github.io/devtools-protocol/
"""

import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT = 60.0  # seconds for an answer
_FLAGS = (
    "--headless",
    "--no-sandbox",  # which needs a user other than root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)


def find_browser() -> str | None:
    """Path of an installed browser."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A running browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._last = 0
        self._unread = b""
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Sends a command; returns its result, and keeps events that come before it."""
        self._last += 1
        command = {"id": self._last, "method": method, "params": parameters}
        os.write(self._to, json.dumps(command | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    def wait_for(self, method: str, session: str) -> None:
        """Waits for an event that has not come yet, or has since the last command."""
        while not any(event.get("method") == method and event.get("sessionId") == session for event in self.events):
            self.events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + _TIMEOUT
        while b"\0" not in self._unread:
            if not select.select([self._from], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            received = os.read(self._from, 1 << 20)
            if not received:
                raise ConnectionError("the browser has ended")
            self._unread += received
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


class Page:
    """A file opened in a tab of its own.

    Args:
        browser: in which.
        path: of the HTML file, or its address.
        width: of the window, CSS pixels.
        dark: whether the reader prefers dark pages.
        scripts: whether scripts run.
    """

    def __init__(
        self, browser: Browser, path: Path | str, *, width: int = 1200, dark: bool = False, scripts: bool = True
    ) -> None:
        self._browser = browser
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self._target = target
        self._session = browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        phone = width < 600
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        self.send("Emulation.setEmulatedMedia", features=[_preference(dark)])
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.send("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        browser.wait_for("Page.loadEventFired", self._session)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command to this page."""
        return self._browser.send(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Clicks with the mouse into the middle of the first element that matches, scrolled into view."""
        place = self.evaluate(
            f"(() => {{ const found = document.querySelector({json.dumps(selector)});"
            "found.scrollIntoView({block: 'center', behavior: 'instant'}); const box = found.getBoundingClientRect();"
            "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Types into what has the focus."""
        for letter in text:
            self.press(letter, text=letter)

    def press(self, key: str, *, text: str = "", code: int = 0) -> None:
        """Presses a key, such as Tab (code 9) or Enter (code 13, text "\\r")."""
        key_down = {"type": "keyDown", "key": key, "text": text, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", **key_down)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def complaints(self) -> list[Any]:
        """Messages on the console, uncaught exceptions and what the browser itself logs, from the beginning on."""
        self.evaluate("0")
        kinds = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        return [event["params"] for event in self._events() if event["method"] in kinds]

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself included; contents of data: addresses are left off."""
        self.evaluate("0")
        urls = [e["params"]["request"]["url"] for e in self._events() if e["method"] == "Network.requestWillBeSent"]
        return ["data:" if url.startswith("data:") else url for url in urls]

    def close(self) -> None:
        """Closes the tab."""
        self._browser.send("Target.closeTarget", targetId=self._target)

    def _events(self) -> Iterator[dict[str, Any]]:
        return (event for event in self._browser.events if event.get("sessionId") == self._session)


@contextmanager
def running_browser(program: str, *more: str) -> Iterator[Browser]:
    """Starts a browser with an empty profile and more flags, and ends it."""
    to_read, to_write = _high_pipe()
    from_read, from_write = _high_pipe()
    with tempfile.TemporaryDirectory(prefix="browser", ignore_cleanup_errors=True) as profile:
        null = os.open(os.devnull, os.O_RDWR)
        process = os.posix_spawn(
            program,
            [program, *_FLAGS, *more, f"--user-data-dir={profile}", "about:blank"],
            dict(os.environ),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, null, 2),
                (os.POSIX_SPAWN_DUP2, to_read, 3),
                (os.POSIX_SPAWN_DUP2, from_write, 4),
            ],
        )
        for descriptor in (null, to_read, from_write):
            os.close(descriptor)
        browser = Browser(to_write, from_read)
        try:
            yield browser
            browser.send("Browser.close")
        finally:
            # A browser whose pipe is closed ends itself, unless it hangs.
            os.close(to_write)
            os.close(from_read)
            _end(process)


def _end(process: int) -> None:
    for _ in range(100):
        if os.waitpid(process, os.WNOHANG)[0]:
            return
        time.sleep(0.1)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def _high_pipe() -> tuple[int, int]:
    """Descriptors above those that the browser expects to be its own."""
    pair = os.pipe()
    high = tuple(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in pair)
    for descriptor in pair:
        os.close(descriptor)
    return high[0], high[1]


def _preference(dark: bool) -> dict[str, str]:
    return {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
