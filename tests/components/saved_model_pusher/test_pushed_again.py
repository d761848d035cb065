"""What is taken for the model that is served, so that it is not pushed again."""

import shutil
from pathlib import Path

import pytest

from components.history.pushed_versions import WARMUP_FILE
from components.saved_model_pusher import publish as publishing
from detection.storage import versions
from detection.storage.versions import numbered_versions
from tests.components.saved_model_pusher.version_folders import PARTS, another, hidden, parts, write_parts


def publish(saved_model: Path, push_directory: Path) -> Path:
    return Path(publishing.publish(saved_model, push_directory))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_parts(tmp_path / "Format-Serving")


def test_a_model_that_is_there_is_not_copied(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = tmp_path / "serving"
    extra = {"assets.extra/score_thresholds.json": b"{}", "assets.extra/config.yaml": b"replaced"}
    first = publishing.publish(model, serving, added=extra)
    assert parts(Path(first)) == PARTS | extra
    copies = []
    copyfile = shutil.copyfile

    def note(source: Path, destination: Path) -> None:
        copies.append(Path(source).name)
        copyfile(source, destination)

    monkeypatch.setattr(versions.shutil, "copyfile", note)
    assert publishing.publish(model, serving, added=extra | {WARMUP_FILE: b"requests"}) == first
    assert copies == []
    others: tuple[dict[str, bytes], ...] = (
        {},
        extra | {"assets.extra/score_thresholds.json": b"[]"},
        extra | {"assets.extra/more": b""},
    )
    for other in others:
        second = publishing.publish(model, serving, added=other)
        assert parts(Path(second)) == PARTS | other
    assert len(_versions(serving)) == 4
    assert sorted(copies) == sorted(Path(name).name for other in others for name in PARTS.keys() - other)


@pytest.mark.parametrize("same", [True, False])
def test_another_pusher_that_was_faster_is_noticed(model: Path, tmp_path: Path, *, same: bool) -> None:
    serving, other = tmp_path / "serving", tmp_path / "other"
    publish(model, serving)
    shutil.copytree(another(model), other)
    if not same:
        (other / "saved_model.pb").write_bytes(b"other graph")
    faster: list[Path] = []
    pushed = publishing.publish(model, serving, check=lambda _: faster.append(publish(other, serving)))
    assert (Path(pushed) == faster[0]) == same
    assert len(_versions(serving)) == (2 if same else 3)
    assert hidden(serving) == []


def _versions(directory: Path) -> list[int]:
    return [number for number, _ in numbered_versions(directory)]
