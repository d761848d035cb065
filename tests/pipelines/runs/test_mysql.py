"""A run whose metadata lie on a MariaDB server from Debian's package, by its socket; skips where it is missing."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.folders import RunLayout
from pipelines.metadata_database import MetadataDatabase
from pipelines.runs.metadata import check_metadata, open_run_store
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError
from tests.forked_calls import forked_calls
from tests.pipelines import stubbed_run
from tests.pipelines.stubbed_run import NODES, lines

pytestmark = [pytest.mark.extended, pytest.mark.slow]

PASSWORD, VARIABLE = "se'cret", "COCOFLOW_TEST_MYSQL_PASSWORD"
_CREATE_USER = f'CREATE USER cocoflow@localhost IDENTIFIED BY "{PASSWORD}"; GRANT ALL ON *.* TO cocoflow@localhost;'


@pytest.fixture(scope="module")
def keys() -> Iterator[tuple[str, ...]]:
    """The configuration's assignments of a database of a running server."""
    server, install = shutil.which("mariadbd") or "/usr/sbin/mariadbd", shutil.which("mariadb-install-db")
    if install is None or not Path(server).exists():
        pytest.skip("no MariaDB to keep metadata in: install mariadb-server")
    folder = Path(tempfile.mkdtemp(prefix="cocoflow-mariadb-"))
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    prepare = [install, "--no-defaults", f"--datadir={folder}/data", "--auth-root-authentication-method=normal"]
    subprocess.run(prepare, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    socket = f"{folder}/socket"
    start = [server, "--no-defaults", f"--datadir={folder}/data", f"--socket={socket}", "--skip-networking"]
    with subprocess.Popen(
        start, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        try:
            _create_user(socket)
            os.environ[VARIABLE] = PASSWORD
            values = f"kind: mysql, socket: {socket}, database: runs, user: cocoflow, password_env: {VARIABLE}"
            yield (f"run.metadata={{{values}}}",)
        finally:
            os.environ.pop(VARIABLE, None)
            running.kill()
    shutil.rmtree(folder, ignore_errors=True)


def _create_user(socket: str) -> None:
    command = ["mariadb", "--no-defaults", f"--socket={socket}", "--user=root", f"--execute={_CREATE_USER}"]
    deadline = time.monotonic() + 60
    while subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode:
        assert time.monotonic() < deadline, "the server does not answer"
        time.sleep(0.2)


def test_a_killed_run_is_repaired(keys: tuple[str, ...], tmp_path: Path, digits: Path) -> None:
    root, log = tmp_path / "run", tmp_path / "log"
    options = {"stubs": True, "log": str(log), "assignments": keys}
    run = f"{stubbed_run.__name__}:run"
    with forked_calls(*stubbed_run.MODULES) as call:
        killed = options | {"kill": ["SavedModelPusher", "end"]}
        assert call(run, str(root), str(digits), killed) == -signal.SIGKILL
        assert call(run, str(root), str(digits), options) == 0
    assert lines(log).count("SavedModelPusher start") == 2
    assert len(lines(log)) == 2 * len(NODES) + 1, "nothing else was repeated"
    assert len(list((root / "serving").iterdir())) == 1
    config = load_config(None, [f"run.root={root}", *keys])
    database = MetadataDatabase(config.run.metadata, root=str(root), file="unused")
    states = {execution.last_known_state for execution in open_run_store(database, read_only=True).executions()}
    assert states == {3, 4, 5}, "complete, failed, cached"
    assert not [path for path in root.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


def test_a_wrong_password_is_explained(
    keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "wrong")
    config = load_config(None, [f"run.root={tmp_path}", *keys])
    database = MetadataDatabase(config.run.metadata, root=str(tmp_path), file="unused")
    with pytest.raises(CocoflowError, match=r"mysql database runs at .*socket: .* cannot be reached: .*password_env"):
        check_metadata(RunLayout(config), database)
    assert capfd.readouterr().err == ""
