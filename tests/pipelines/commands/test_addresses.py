"""`--data` with an archive or an address, before any command reads it."""

import argparse
import shutil
from pathlib import Path

import pytest

from pipelines.commands.common import config_of
from schemas.errors import ConfigError

KEY = "https://example.org/sets/nuts.zip?key=SECRET"


def _flags(data: str | None, *assignments: str) -> argparse.Namespace:
    return argparse.Namespace(config="default", assignments=list(assignments), data=data)


@pytest.mark.parametrize("by_key", [False, True])
def test_an_archive_becomes_the_folder_of_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_key: bool
) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "set" / "train").mkdir(parents=True)
    (tmp_path / "set" / "train" / "1.jpg").write_bytes(b"x")
    archive = shutil.make_archive(str(tmp_path / "nuts"), "zip", tmp_path / "set")
    flags = _flags(None, f"data.root={archive}") if by_key else _flags(archive)
    root = config_of(flags).data.root
    assert root is not None
    assert Path(root).is_relative_to(tmp_path / "cache")
    assert (Path(root) / "train" / "1.jpg").read_bytes() == b"x"


def test_an_address_is_refused_for_a_pipeline_elsewhere_without_its_key() -> None:
    with pytest.raises(ConfigError, match=r"https://example\.org/sets/nuts\.zip: .*gcloud storage cp FILE") as caught:
        config_of(_flags(KEY), here=False)
    assert "SECRET" not in str(caught.value)
    assert config_of(_flags("gs://bucket/nuts.zip"), here=False).data.root == "gs://bucket/nuts.zip"
