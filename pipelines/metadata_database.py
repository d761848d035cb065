"""The ML Metadata database that TFX fills during a run: a scratch file, or a database of a PostgreSQL or MySQL server.

Nothing is read from it after the run.  A server's database is for people who look there.
"""

import hashlib
import logging
import os
import re
from pathlib import Path

from ml_metadata.metadata_store import metadata_store
from ml_metadata.proto import metadata_store_pb2 as mlmd

from schemas.config.config import Config
from schemas.config.run import MetadataConfig
from schemas.errors import CocoflowError, ConfigError

_DIGEST_LENGTH = 8
_PORTS = {"postgresql": 5432, "mysql": 3306}
_PASSWORD = re.compile(r'(password:\s*)"(?:[^"\\]|\\.)*"')  # in a printed proto


def pipeline_name(config: Config, root: str) -> str:
    """Returns the pipeline's name in the database: one for each `run.root` on a server, which several may share."""
    if config.run.metadata.kind == "sqlite":
        return config.run.name
    return f"{config.run.name}-{hashlib.sha256(root.encode()).hexdigest()[:_DIGEST_LENGTH]}"


def metadata_connection(settings: MetadataConfig, file: Path) -> mlmd.ConnectionConfig:
    """Builds the connection, for ML Metadata and for TFX.

    Args:
        settings: section `run.metadata`.
        file: the SQLite file, which is created if missing; not used for a server.

    Raises:
        ConfigError: the variable of the password is missing.
    """
    if settings.kind == "sqlite":
        return mlmd.ConnectionConfig(sqlite=mlmd.SqliteMetadataSourceConfig(filename_uri=str(file)))
    where = {"host": settings.host, "port": settings.port or _PORTS[settings.kind]}
    login = {"user": settings.user, "password": _password(settings)}
    if settings.kind == "mysql":
        where = where if settings.socket is None else {"socket": settings.socket}
        return mlmd.ConnectionConfig(mysql=mlmd.MySQLDatabaseConfig(**where, **login, database=settings.database))
    texts = {**where, **login, "dbname": settings.database}
    quoted = {name: _in_connection_string(str(value)) for name, value in texts.items()}
    return mlmd.ConnectionConfig(postgresql=mlmd.PostgreSQLDatabaseConfig(**quoted))


def _password(settings: MetadataConfig) -> str:
    name = settings.password_env
    if name is not None and name not in os.environ:
        raise ConfigError(
            f"run.metadata.password_env = {name}: there is no such environment variable. "
            f"Export {name} with the password of {settings.user}, or name another one."
        )
    return "" if name is None else os.environ[name]


def _in_connection_string(value: str) -> str:
    """Quotes a value for libpq's connection string, which ML Metadata puts together as it is, if it needs that."""
    if not re.search(r"[\s\\]|^'", value):
        return value
    escaped = re.sub(r"(['\\])", r"\\\1", value)
    return f"'{escaped}'"


def open_store(connection: mlmd.ConnectionConfig, settings: MetadataConfig) -> metadata_store.MetadataStore:
    """Opens the store; creates it if missing.

    Args:
        connection: of `metadata_connection`.
        settings: section `run.metadata`, for the message.

    Raises:
        CocoflowError: the server refuses the connection or cannot be reached.
    """
    try:
        return metadata_store.MetadataStore(connection)
    except Exception as error:
        # ML Metadata logs the reason, and raises an error without it.
        raise CocoflowError(
            f"run.metadata: the {settings.kind} database {settings.database} at {settings.socket or settings.host} "
            f"cannot be reached, or refuses user {settings.user}; run.log has the reason (with --verbose: see above). "
            "Check that the server runs, the keys of run.metadata, and the password in the variable of password_env."
        ) from error


def hide_passwords() -> None:
    """Hides passwords in the log of this process, where TFX prints the connection."""
    logging.getLogger("absl").addFilter(_hide_password)


def _hide_password(record: logging.LogRecord) -> bool:
    record.msg, record.args = _PASSWORD.sub(r'\1"***"', record.getMessage()), ()
    return True
