"""A PostgreSQL server of its own for tests, from Debian's package, on a Unix socket."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

USER, PASSWORD, PASSWORD_VARIABLE = "cocoflow", "se\"cret's", "COCOFLOW_TEST_PASSWORD"
_UNPRIVILEGED = "nobody"  # the server refuses to run as root


class Server(NamedTuple):
    """A running server.

    socket: folder of its socket, which stands for the host.
    programs: folder of PostgreSQL's programs.
    """

    socket: str
    programs: Path

    def keys(self, database: str) -> tuple[str, ...]:
        """Returns the configuration's assignments of a database of this server."""
        values = {
            "kind": "postgresql",
            "host": self.socket,
            "database": database,
            "user": USER,
            "password_env": PASSWORD_VARIABLE,
        }
        return tuple(f"run.metadata.{key}={value}" for key, value in values.items())


def find_programs() -> Path | None:
    """Returns the folder of PostgreSQL's programs; None: it is not installed."""
    found = [Path(path).resolve() for path in [shutil.which("initdb")] if path is not None]
    installed = [*found, *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))]  # Debian's are not in the PATH
    return installed[-1].parent if installed else None


@contextmanager
def running_server(programs: Path) -> Iterator[Server]:
    """Runs an empty server until the block ends."""
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
            yield Server(folder, programs)
        finally:
            call(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def end_connections(server: Server, database: str) -> None:
    """Ends the connections to a database, as a server does that is restarted."""
    statement = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
    command = [str(server.programs / "psql"), "-h", server.socket, "-U", USER, "-d", "postgres", "-c", statement]
    environment = os.environ | {"PGPASSWORD": PASSWORD}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
