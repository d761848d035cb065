"""Configuration files on Cloud Storage."""

from pathlib import Path

import pytest

from detection.config_files import read_config
from detection.storage.atomic import write_bytes, write_text
from schemas.config.config_io import load_config, to_yaml
from schemas.errors import ConfigError
from tests.storage_emulator.fixture import Bucket


def test_a_remote_file_is_read_like_a_local_one(gcs: Bucket, tmp_path: Path) -> None:
    text = to_yaml(load_config(None, ["train.steps=7"]))
    (tmp_path / "own.yaml").write_text(text)
    write_text(f"{gcs.path}/own.yaml", text)
    assert read_config(f"{gcs.path}/own.yaml", ["run.name=a"]) == load_config(tmp_path / "own.yaml", ["run.name=a"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"train: {steps: many}", "own.yaml: train.steps = "),
        (b"[", "own.yaml: not a YAML file"),
        (b"\xff", "own.yaml: not a text file in UTF-8"),
        (None, "own.yaml: .*Check --config"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(content: bytes | None, message: str, gcs: Bucket) -> None:
    if content is not None:
        write_bytes(f"{gcs.path}/own.yaml", content)
    with pytest.raises(ConfigError, match=f"{gcs.path}/{message}"):
        read_config(f"{gcs.path}/own.yaml")


def test_another_scheme_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"--config s3://bucket/own\.yaml: s3:// is not supported"):
        read_config("s3://bucket/own.yaml")
