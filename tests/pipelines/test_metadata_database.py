"""The connections to metadata databases, without a server."""

import logging
from pathlib import Path

import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipelines.metadata_database import MetadataDatabase, passwords_hidden
from schemas.config.config_io import load_config
from schemas.config.run import MetadataConfig
from schemas.errors import ConfigError

SECRET = 'se"cret\né'


def _database(root: str = "/runs/a", **keys: object) -> MetadataDatabase:
    values = {"database": "runs", "user": "me", "password_env": "SECRET"} | keys
    return MetadataDatabase(MetadataConfig.model_validate(values), root=root, file="unused")


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET)


def test_the_connections_are_what_the_keys_say() -> None:
    postgresql = _database(kind="postgresql", host="db").connection().postgresql
    assert (postgresql.host, postgresql.port, postgresql.dbname, postgresql.user, postgresql.password) == (
        "db", "5432", "runs", "me", f"'{SECRET}'",
    )  # fmt: skip
    assert _database(kind="postgresql", host="db", port=7).connection().postgresql.port == "7"
    mysql = _database(kind="mysql", host="db").connection().mysql
    assert (mysql.host, mysql.port, mysql.database, mysql.user, mysql.password, mysql.socket) == (
        "db", 3306, "runs", "me", SECRET, "",
    )  # fmt: skip
    socket = _database(kind="mysql", socket="/run/s", password_env=None).connection().mysql
    assert (socket.socket, socket.host, socket.port, socket.password) == ("/run/s", "", 0, "")


def test_without_a_server_it_is_a_file(tmp_path: Path) -> None:
    database = MetadataDatabase(MetadataConfig(), root="/runs/a", file=tmp_path / "m.sqlite")
    assert database.connection().sqlite.filename_uri == str(tmp_path / "m.sqlite")


def test_each_root_has_pipelines_of_its_own_on_a_server(tmp_path: Path) -> None:
    config = load_config(None, ["run.name=digits"])
    first, second = (_database(root, kind="mysql", host="db") for root in ("/runs/a", "gs://runs/b"))
    name = first.pipeline_name(config)
    assert name.startswith("digits-")
    assert name == _database("/runs/a", kind="mysql", host="db").pipeline_name(config)
    assert name != second.pipeline_name(config)
    file = MetadataDatabase(MetadataConfig(), root="/runs/a", file=tmp_path / "m.sqlite")
    assert file.pipeline_name(config) == "digits"


def test_a_library_without_the_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        DESCRIPTOR = mlmd.SqliteMetadataSourceConfig.DESCRIPTOR

    monkeypatch.setattr(mlmd, "ConnectionConfig", Older)
    with pytest.raises(ConfigError, match=r"run\.metadata\.kind = postgresql: the installed ML Metadata does not"):
        _database(kind="postgresql", host="db").connection()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("{host: db}", r"host = db does nothing with kind = sqlite"),
        ("{password_env: X}", r"password_env = X does nothing with kind = sqlite"),
        ("{kind: postgresql, database: d, user: u}", "kind = postgresql requires host"),
        ("{kind: postgresql, host: h, user: u}", "kind = postgresql requires database"),
        ("{kind: mysql, socket: s, database: d}", "kind = mysql requires user"),
        ("{kind: mysql, socket: s, host: h, database: d, user: u}", "host = h does nothing with socket"),
        ("{kind: postgresql, host: h, socket: s, database: d, user: u}", "socket = s does nothing with kind = postgr"),
        ("{kind: postgresql, host: h, database: d, user: u, port: 70000}", "65535"),
        ("{kind: postgresql, host: h, database: d, user: u, password: p}", "password"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, [f"run.metadata={keys}"])


def test_a_printed_connection_has_no_password(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("absl")
    connection = _database(kind="postgresql", host="db").connection()
    caplog.set_level(logging.INFO, "absl")
    with passwords_hidden():
        logger.info("Using connection config:\n %s", connection)
        logger.info("%d of %s", 3, "other values")
    assert "cret" not in caplog.text
    assert 'password: "***"' in caplog.text
    assert 'host: "db"' in caplog.text
    assert "3 of other values" in caplog.text
    logger.info("%s", connection)
    assert "cret" in caplog.text, "only in the block"


@pytest.mark.parametrize(
    ("user", "quoted"),
    [("me", "me"), ("it's", "it's"), ("my user", "'my user'"), ("a\\ b'c", r"'a\\ b\'c'"), ("'", r"'\''")],
)
def test_values_with_spaces_are_quoted_in_a_connection_string(user: str, quoted: str) -> None:
    assert _database(kind="postgresql", host="db", user=user).connection().postgresql.user == quoted
    assert _database(kind="mysql", host="db", user=user).connection().mysql.user == user
