"""A run whose metadata TFX writes to a PostgreSQL server, and one that the server refuses."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.small_run import read_summary, run_pipeline
from tests.pipelines.stubbed_run import NODES

USER, PASSWORD, PASSWORD_VARIABLE = "cocoflow", "se\"cret's", "COCOFLOW_TEST_PASSWORD"
_UNPRIVILEGED = "nobody"  # the server refuses to run as root


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Folder of the socket of a server of its own, which stands for the host."""
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL to keep metadata in: run `make postgresql` as root, or install postgresql")
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    folder = tempfile.mkdtemp(prefix="cocoflow-postgresql-")  # socket names are short, and pytest's folders private
    user = _UNPRIVILEGED if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    password = Path(folder, "password")
    password.write_text(PASSWORD)
    password.chmod(0o644)
    control = [str(programs / "pg_ctl"), "-D", f"{folder}/data"]

    def call(*command: str) -> None:
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT)

    try:
        create = [str(programs / "initdb"), "-D", f"{folder}/data", "-U", USER, f"--pwfile={password}", "--no-sync"]
        call(*create, "--auth=scram-sha-256", "--encoding=UTF8")
        call(*control, "-l", f"{folder}/log", "-o", f"-F -k {folder} -c listen_addresses=''", "-w", "start")
        try:
            yield folder
        finally:
            call(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    """Returns the folder of PostgreSQL's programs; None: it is not installed."""
    found = [Path(path).resolve() for path in [shutil.which("initdb")] if path is not None]
    installed = [*found, *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]  # Debian's are not in the PATH
    return installed[-1].parent if installed else None


def _require_no_password(root: Path) -> None:
    texts = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    assert (root / "run.log").is_file()
    for word in ("cret's", PASSWORD, PASSWORD.replace('"', r"\"").replace("'", r"\'")):
        assert not [text for text in texts if word.encode() in text]


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.e2e
def test_a_whole_run(socket: str, tmp_path: Path, digits: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys = {"kind": "postgresql", "host": socket, "database": "runs", "user": USER, "password_env": PASSWORD_VARIABLE}
    root, refused = tmp_path / "run", tmp_path / "refused"

    def run(root: Path, **changes: str) -> int:
        assignments = tuple(f"run.metadata.{key}={value}" for key, value in {**keys, **changes}.items())
        return run_pipeline(root, digits, assignments=assignments)

    for _ in range(2):
        assert run(root) == 0
    shown = capfd.readouterr().err
    for node in NODES:
        assert f"{node} reused" in shown
    assert read_summary(root)["blessed"] is True
    assert len(list((root / "serving").iterdir())) == 1
    assert 'password: "***"' in (root / "run.log").read_text()
    _require_no_password(root)

    assert run(refused, user="somebody") == 1
    assert f"database runs at {socket} cannot be reached, or refuses user somebody" in capfd.readouterr().err
    assert 'authentication failed for user "somebody"' in (refused / "run.log").read_text()
    _require_no_password(refused)
