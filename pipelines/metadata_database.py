"""The ML Metadata database that TFX fills during a run: a scratch file, or a database of a PostgreSQL or MySQL server.

Nothing is read from it after the run.  A server's database is for people who look there; each `run.root` has a
pipeline of its own in it, named after `run.name` and the root.
"""

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd

from schemas.config.config import Config
from schemas.config.run import MetadataConfig
from schemas.errors import CocoflowError, ConfigError

_DIGEST_LENGTH = 8
_PORTS = {"postgresql": 5432, "mysql": 3306}
# ML Metadata logs PostgreSQL's reason, and raises an error without it; MySQL's it does not tell at all.
_REASON = re.compile(r"PostgreSQL error: (.+)")
_PASSWORD = re.compile(r'(password:\s*)"(?:[^"\\]|\\.)*"')  # in a printed proto


class MetadataDatabase:
    """The database of a `run.root`.

    Args:
        settings: section `run.metadata`.
        root: local or remote `run.root`.
        file: the SQLite file, which may not exist yet; not used for a server.
    """

    def __init__(self, settings: MetadataConfig, *, root: str, file: str | Path) -> None:
        self._settings = settings
        self._suffix = f"-{hashlib.sha256(root.encode()).hexdigest()[:_DIGEST_LENGTH]}"
        self.file = Path(file) if settings.kind == "sqlite" else None

    @property
    def place(self) -> str:
        """Names the database in messages."""
        if self.file is not None:
            return str(self.file)
        settings = self._settings
        where = settings.socket or f"{settings.host}:{settings.port or _PORTS[settings.kind]}"
        return f"{settings.kind} database {settings.database} at {where}"

    def pipeline_name(self, config: Config) -> str:
        """Returns the name of the pipeline in the database."""
        return config.run.name if self.file is not None else f"{config.run.name}{self._suffix}"

    def connection(self) -> mlmd.ConnectionConfig:
        """Builds the connection, for ML Metadata and for TFX.

        Raises:
            ConfigError: the variable of the password is missing, or the installed ML Metadata does not know
                the server.
        """
        connection = mlmd.ConnectionConfig()
        if self.file is not None:
            connection.sqlite.filename_uri = str(self.file)
            connection.sqlite.connection_mode = mlmd.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
            return connection
        settings = self._settings
        if settings.kind not in connection.DESCRIPTOR.fields_by_name:
            raise ConfigError(
                f"run.metadata.kind = {settings.kind}: the installed ML Metadata does not support it. "
                "Install ml-metadata 1.16, or use another kind."
            )
        if settings.kind == "postgresql":
            self._fill_postgresql(connection.postgresql)
        else:
            self._fill_mysql(connection.mysql)
        return connection

    def _fill_postgresql(self, server: mlmd.PostgreSQLDatabaseConfig) -> None:
        server.host = _in_connection_string(str(self._settings.host))
        server.port = str(self._settings.port or _PORTS["postgresql"])
        server.dbname = _in_connection_string(str(self._settings.database))
        server.user = _in_connection_string(str(self._settings.user))
        server.password = _in_connection_string(self._password())

    def _fill_mysql(self, server: mlmd.MySQLDatabaseConfig) -> None:
        if self._settings.socket is not None:
            server.socket = self._settings.socket
        else:
            server.host = self._settings.host
            server.port = self._settings.port or _PORTS["mysql"]
        server.database = self._settings.database
        server.user = self._settings.user
        server.password = self._password()

    def _password(self) -> str:
        name = self._settings.password_env
        if name is None:
            return ""
        if name not in os.environ:
            raise ConfigError(
                f"run.metadata.password_env = {name}: there is no such environment variable. "
                f"Export {name} with the password of {self._settings.user}, or name another one."
            )
        return os.environ[name]

    def open(self) -> metadata_store.MetadataStore:
        """Opens the store; creates it if missing.

        Raises:
            ConfigError: see `connection`.
            CocoflowError: the server refuses the connection or cannot be reached.
        """
        connection = self.connection()
        if self.file is not None:
            return metadata_store.MetadataStore(connection)
        with _captured_stderr() as captured:
            try:
                return metadata_store.MetadataStore(connection)
            except Exception as error:
                failure = error
        reasons = _REASON.findall("".join(captured)) or ["ML Metadata does not say why"]
        raise CocoflowError(
            f"{self.place}: the run's metadata cannot be reached: {' '.join(reasons[-1].split())}. Check that the "
            "server runs, the keys of run.metadata, and the password in the variable that password_env names."
        ) from failure


def _in_connection_string(value: str) -> str:
    """Quotes a value for libpq's connection string, which ML Metadata puts together as it is, if it needs that."""
    if not re.search(r"[\s\\]|^'", value):
        return value
    escaped = re.sub(r"(['\\])", r"\\\1", value)
    return f"'{escaped}'"


@contextlib.contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    """Collects what libraries in C++ write to descriptor 2; yields a list with the text, filled at the end."""
    text: list[str] = []
    reader, writer = os.pipe()
    before = os.dup(2)
    os.set_blocking(writer, False)  # more than a pipe takes is lost, and blocks nobody
    os.dup2(writer, 2)
    os.close(writer)
    try:
        yield text
    finally:
        os.dup2(before, 2)
        os.close(before)
        with os.fdopen(reader, "rb") as content:
            text.append(content.read().decode(errors="replace"))


@contextlib.contextmanager
def passwords_hidden() -> Iterator[None]:
    """Hides passwords in the log of the block, where TFX prints the connection."""
    logger = logging.getLogger("absl")
    logger.addFilter(_hide_password)
    try:
        yield
    finally:
        logger.removeFilter(_hide_password)


def _hide_password(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    if "password" in message:
        record.msg, record.args = _PASSWORD.sub(r'\1"***"', message), ()
    return True
