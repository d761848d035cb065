"""The connections to metadata databases, without a server."""

import logging
from pathlib import Path

import pytest
from ml_metadata.proto import metadata_store_pb2 as mlmd

from pipelines.metadata_database import hide_passwords, metadata_connection, open_store, pipeline_name
from schemas.config.config_io import load_config
from schemas.config.run import MetadataConfig
from schemas.errors import CocoflowError, ConfigError

SECRET = 'se"cret\né'


def _connection(**keys: object) -> mlmd.ConnectionConfig:
    values = {"database": "runs", "user": "me", "password_env": "SECRET"} | keys
    return metadata_connection(MetadataConfig.model_validate(values), Path("unused"))


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", SECRET)


def test_the_connections_are_what_the_keys_say() -> None:
    postgresql = _connection(kind="postgresql", host="db").postgresql
    assert (postgresql.host, postgresql.port, postgresql.dbname, postgresql.user, postgresql.password) == (
        "db", "5432", "runs", "me", f"'{SECRET}'",
    )  # fmt: skip
    assert _connection(kind="postgresql", host="db", port=7).postgresql.port == "7"
    mysql = _connection(kind="mysql", host="db").mysql
    assert (mysql.host, mysql.port, mysql.database, mysql.user, mysql.password, mysql.socket) == (
        "db", 3306, "runs", "me", SECRET, "",
    )  # fmt: skip
    socket = _connection(kind="mysql", socket="/run/s", password_env=None).mysql
    assert (socket.socket, socket.host, socket.port, socket.password) == ("/run/s", "", 0, "")


def test_without_a_server_it_is_a_file(tmp_path: Path) -> None:
    connection = metadata_connection(MetadataConfig(), tmp_path / "m.sqlite")
    assert open_store(connection, MetadataConfig()).get_contexts() == []
    assert (tmp_path / "m.sqlite").is_file()


def test_each_root_has_pipelines_of_its_own_on_a_server() -> None:
    server = load_config(None, ["run.name=digits", "run.metadata={kind: mysql, host: db, database: d, user: u}"])
    name = pipeline_name(server, "/runs/a")
    assert name.startswith("digits-")
    assert name == pipeline_name(server, "/runs/a")
    assert name != pipeline_name(server, "gs://runs/b")
    assert pipeline_name(load_config(None, ["run.name=digits"]), "/runs/a") == "digits"


def test_a_missing_password_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SECRET")
    with pytest.raises(ConfigError, match="password_env = SECRET: there is no such environment variable"):
        _connection(kind="postgresql", host="db")


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_a_server_that_cannot_be_reached_is_named(kind: str) -> None:
    values = {"kind": kind, "host": "127.0.0.1", "port": 1, "database": "runs", "user": "me"}
    settings = MetadataConfig.model_validate(values)
    named = rf"run\.metadata: the {kind} database runs at 127.0.0.1 cannot be reached.*run\.log.*password_env"
    with pytest.raises(CocoflowError, match=named):
        open_store(metadata_connection(settings, Path("unused")), settings)


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
    connection = _connection(kind="postgresql", host="db")
    caplog.set_level(logging.INFO, "absl")
    hide_passwords()
    logger.info("Using connection config:\n %s", connection)
    logger.info("%d of %s", 3, "other values")
    assert "cret" not in caplog.text
    assert 'password: "***"' in caplog.text
    assert 'host: "db"' in caplog.text
    assert "3 of other values" in caplog.text


@pytest.mark.parametrize(
    ("user", "quoted"),
    [("me", "me"), ("it's", "it's"), ("my user", "'my user'"), ("a\\ b'c", r"'a\\ b\'c'"), ("'", r"'\''")],
)
def test_values_with_spaces_are_quoted_in_a_connection_string(user: str, quoted: str) -> None:
    assert _connection(kind="postgresql", host="db", user=user).postgresql.user == quoted
    assert _connection(kind="mysql", host="db", user=user).mysql.user == user
