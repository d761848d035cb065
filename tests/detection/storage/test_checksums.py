"""Checksums of an exported model: what is found of a broken copy."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from detection.storage import checksums
from detection.storage.atomic import write_bytes
from detection.storage.checksums import contents, require_checksums, write_checksums
from detection.storage.files import walk_states
from schemas.artifacts import CHECKSUMS_JSON, CONFIG_YAML, EXTRA_FILES
from schemas.errors import DataError
from tests.storage_emulator.fixture import Bucket

MODEL, WEIGHTS = "saved_model.pb", "variables/variables.data-00000-of-00001"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name in (MODEL, WEIGHTS, f"{EXTRA_FILES}/{CONFIG_YAML}"):
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
    write_checksums(tmp_path / "model")
    return tmp_path / "model"


def test_the_list_holds_what_sha256_gives(model: Path) -> None:
    listed = json.loads((model / EXTRA_FILES / CHECKSUMS_JSON).read_text())
    assert listed == {name: hashlib.sha256(name.encode() * 1000).hexdigest() for name in (MODEL, WEIGHTS)}
    require_checksums(model, model)
    # A push adds files there.
    (model / EXTRA_FILES / CONFIG_YAML).write_text("changed")
    (model / EXTRA_FILES / "more").touch()
    require_checksums(model, model)


def test_a_changed_cut_or_missing_file_is_named(model: Path) -> None:
    weights = model / WEIGHTS
    content = weights.read_bytes()
    for broken in (content[:-1], b"x" + content[1:], b""):
        weights.write_bytes(broken)
        with pytest.raises(DataError, match=rf"{WEIGHTS}: the file was cut off or changed .*copy the model again"):
            require_checksums(model, model)
    # The same from a copy of the subfolder alone.
    with pytest.raises(DataError, match=WEIGHTS):
        require_checksums(model, weights.parent, below="variables")
    require_checksums(model, model / "elsewhere", below="assets")
    weights.unlink()
    with pytest.raises(DataError, match=rf"{WEIGHTS}: the file is missing"):
        require_checksums(model, model)


def test_a_damaged_list_is_refused_and_none_is_fine(model: Path) -> None:
    listed = model / EXTRA_FILES / CHECKSUMS_JSON
    listed.write_text("[1]")
    with pytest.raises(DataError, match=r"checksums\.json: not a list of checksums"):
        require_checksums(model, model)
    listed.write_text(json.dumps({MODEL: 5}))
    with pytest.raises(DataError, match="was cut off or changed"):
        require_checksums(model, model)
    for name in ("a" * 300, "a/" * 3000 + "a", "a\0b", "\ud800"):
        listed.write_text(json.dumps({name: "5"}))
        with pytest.raises(DataError, match="the file is missing"):
            require_checksums(model, model)
    listed.unlink()
    require_checksums(model, model)


def test_a_remote_file_without_the_service_s_checksum_is_read(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bytes(f"{gcs.path}/model/x", b"123456789")
    listed = walk_states(f"{gcs.path}/model")
    expected = contents(f"{gcs.path}/model")
    assert expected == {"x": (9, "4waSgw==")}
    bare = {name: replace(state, checksum="") for name, state in listed.items()}
    monkeypatch.setattr(checksums, "walk_states", lambda folder: bare)
    assert contents(f"{gcs.path}/model") == expected
