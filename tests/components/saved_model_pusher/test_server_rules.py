"""TF Serving's rules for the folders that it watches, while pushers, removals and rollbacks are killed at any moment.

The rules, as its file-system source documents them: only children with a numeric name are
versions, and the highest is served.  A version without `saved_model.pb` fails to load, and the
server stays with the version that it has.
"""

import multiprocessing
import os
import random
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from components.history.pushed_versions import whole_versions
from components.saved_model_pusher.publish import publish
from components.saved_model_pusher.push import remove_old_versions
from components.saved_model_pusher.rollback import roll_back
from detection.storage import files
from detection.storage.paths import is_remote, join
from schemas.errors import DataError
from tests.components.saved_model_pusher.version_folders import MARKER, content_of, write_version
from tests.storage_emulator.fixture import Bucket

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["google.cloud.storage", "google.auth.transport.requests", __name__])

MODELS = "ABCD"
KEEP = 3


class Server:
    """Follows a push directory as TF Serving does, and notes what breaks its rules."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self.served: list[int] = []
        self.broken: list[str] = []

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _numbers(self) -> list[int]:
        return sorted(int(name) for name in files.list_folders(self._directory) if name.isdecimal())

    def _pick(self) -> int | None:
        numbers = self._numbers()
        if is_remote(self._directory):  # a version there grows, and cannot be loaded before it is whole
            numbers = [one for one in numbers if files.is_file(join(self._directory, str(one), MARKER))]
        return numbers[-1] if numbers else None

    def _follow(self) -> None:
        while not self._end.is_set():
            try:
                self.look()
            except Exception as error:
                self.broken.append(repr(error))

    def look(self) -> None:
        """Polls once."""
        number = self._pick()
        if number is None:
            if self.served:
                self.broken.append("no version any more")
            return
        if self.served and number < self.served[-1]:
            self.broken.append(f"{number} after {self.served[-1]}")
        if self.served and number == self.served[-1]:
            return
        try:
            content_of(join(self._directory, str(number)))
        except (AssertionError, DataError, OSError) as error:
            # While it loaded, newer ones may have come and this one gone; a server loads the newest then.
            if self._pick() == number:
                self.broken.append(f"{number} is not whole: {error}")
            return
        self.served.append(number)


def operate(receiver: Connection, directory: str, models: str, seed: int) -> None:
    """Pushes, removes and rolls back until it is killed."""
    os.environ.update(receiver.recv())
    chance = random.Random(seed)
    while True:
        try:
            if chance.random() < 0.3:
                roll_back(directory)
            else:
                publish(join(models, chance.choice(MODELS)), directory)
                remove_old_versions(directory, keep=KEEP)
        except DataError:  # nothing to roll back to, or rolled back before
            pass


def kill_at_random(server: Server, directory: str, models: str, *, kills: int, seconds: float) -> None:
    """Kills pushers, each at a random moment within `seconds` after the server has seen a version of it."""
    chance = random.Random(7)
    for seed in range(kills):
        receiver, sender = _PROCESSES.Pipe(duplex=False)
        process = _PROCESSES.Process(target=operate, args=(receiver, directory, models, seed))
        seen = len(server.served)
        process.start()
        sender.send(dict(os.environ))
        while len(server.served) == seen and process.is_alive():
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, seconds))
        assert process.is_alive()
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()


@pytest.mark.parametrize("where", ["local", "remote"])
def test_a_server_only_ever_sees_whole_versions_that_rise(tmp_path: Path, gcs: Bucket, where: str) -> None:
    directory = str(tmp_path / "serving") if where == "local" else f"{gcs.path}/serving"
    kills, seconds = (7, 0.1) if where == "local" else (3, 0.8)
    for content in MODELS:
        write_version(tmp_path / "models" / content, content)
    first = write_version(tmp_path / "first", "first")
    with Server(directory) as server:
        publish(first, directory)
        kill_at_random(server, directory, str(tmp_path / "models"), kills=kills, seconds=seconds)
        last = write_version(tmp_path / "last", "last")
        publish(last, directory)
        remove_old_versions(directory, keep=KEEP)
    server.look()
    assert server.broken == []
    assert len(server.served) > kills
    assert server.served == sorted(server.served)
    versions = whole_versions(directory)
    assert server.served[-1] == max(versions)
    assert content_of(versions[max(versions)]) == "last"
    # The last push ended what the killed ones had begun; a folder in which nothing was written yet stays an hour.
    assert len(versions) == KEEP
    left = {name.split("/")[0] for name in files.walk_files(directory) if not name.endswith("/.unfinished")}
    assert left == set(map(str, versions))


def test_the_servers_rules_notice_half_versions_and_steps_back(tmp_path: Path) -> None:
    """The test's own server, on planted faults."""
    server = Server(str(tmp_path))
    server.look()
    assert server.broken == []
    write_version(tmp_path / "7", "A")
    server.look()
    (write_version(tmp_path / "8", "B") / "variables/variables.index").unlink()
    server.look()
    assert server.served == [7]
    assert server.broken == [server.broken[0]]
    assert server.broken[0].startswith("8 is not whole")
    files.remove_folder(tmp_path / "8")
    (tmp_path / "8").mkdir()  # numeric, and the highest
    server.look()
    assert len(server.broken) == 2
    files.remove_folder(tmp_path / "8")
    (tmp_path / "7").rename(tmp_path / "6")
    server.look()
    assert "6 after 7" in server.broken
    files.remove_folder(tmp_path / "6")
    server.look()
    assert server.broken[-1] == "no version any more"
