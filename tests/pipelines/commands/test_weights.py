import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pipeline_runner
from detection.interop.automl.checkpoint import automl_name
from detection.models.efficientdet.config import EFFICIENTDETS
from detection.models.registry import build_detector
from detection.pretrained.listing import find_weights
from detection.weights.locate import locate_weights
from detection.weights.publications import COCO_DETECTORS
from tests.detection.fake_detector import write_images
from tests.detection.interop.automl.checkpoints import save_named
from tests.detection.pretrained.publisher import Publisher, published_detector, running_publisher
from tests.storage_emulator.fixture import Bucket

NANO, PATH = "efficientdet-nano", "/efficientdet-nano.tar.gz"


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Publisher]:
    """Publishes a very small detector alone."""
    monkeypatch.delenv("COCOFLOW_OFFLINE")
    small = EFFICIENTDETS[NANO].changed(
        {"neck": {"filters": 16, "cells": 1}, "head": {"layers": 1}, "image_size": (64, 64)}
    )
    monkeypatch.setitem(EFFICIENTDETS, NANO, small)
    detector = build_detector(NANO, num_classes=90)
    values = {automl_name(variable.path): np.full(variable.shape, 0.01, np.float32) for variable in detector.variables}
    with running_publisher() as running:
        publication = COCO_DETECTORS["efficientdet-d0"]._replace(name=NANO, origin=running.url + PATH)
        monkeypatch.setitem(COCO_DETECTORS, NANO, publication)
        running.files[PATH] = published_detector(NANO, Path(save_named(tmp_path / "published" / "ckpt", values)))
        yield running


def _listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert pipeline_runner.main(["weights", "list", "--json", *arguments]) == 0
    entries: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return entries


def test_every_publication_is_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    entries = {(one["weights"], one["name"]): one for one in _listed(capsys, "--cache", str(tmp_path))}
    assert len(entries) == 15 + 5 + 5 + 4 + 8 + 3 + 8 + 3 + 2 + 6
    d0 = entries["coco", "efficientdet-d0"]
    assert (d0["detectors"], d0["licence"], d0["place"]) == (["efficientdet-d0"], "Apache-2.0", None)
    assert entries["imagenet", "efficientnet-b6"]["detectors"] == ["efficientdet-d6", "efficientdet-d7"]
    assert all(one["licence"] and one["origin"] for one in entries.values())
    assert pipeline_runner.main(["weights", "list", "efficientdet-d0", "efficientnet-b0"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "weights", "for", "MB", "licence", "here", "origin"]
    assert [row.split()[0] for row in rows] == ["efficientdet-d0", "efficientnet-b0"]


def test_the_table_fits_120_columns(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / ("far" * 40) / "efficientdet-d0" / "checkpoints" / "ckpt-0.index"
    place.parent.mkdir(parents=True)
    place.touch()
    monkeypatch.setenv("COLUMNS", "300")
    assert pipeline_runner.main(["weights", "list", "--cache", str(place.parents[2])]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert max(map(len, rows)) <= 120
    words = [row.split() for row in rows]
    [d0] = [row for row in words if row[0] == "efficientdet-d0"]
    assert d0 == ["efficientdet-d0", "coco", "efficientdet-d0", "-", "Apache-2.0", "yes", "storage.googleapis.com"]
    [lite] = [row for row in words if row[0] == "efficientnet-lite0"]
    assert lite[-1] == "package"
    shown = {word.strip(",") for row in words for word in row}
    for entry in find_weights([], str(tmp_path)):
        assert {entry.publication.name, *entry.detectors} <= shown


@pytest.mark.slow
@pytest.mark.parametrize("remote", [False, True])
def test_a_detector_is_fetched_into_a_cache(
    remote: bool, publisher: Publisher, gcs: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = f"{gcs.path}/weights" if remote else str(tmp_path / "cache")
    for _ in range(2):
        assert pipeline_runner.main(["weights", "fetch", NANO, "--cache", cache]) == 0
        assert capsys.readouterr().out == f"{cache}/{NANO}\n"
    assert publisher.asked == [PATH]
    assert [one["place"] for one in _listed(capsys, NANO, "--cache", cache)] == [f"{cache}/{NANO}"]
    assert locate_weights(f"{cache}/{NANO}").prefix == f"{cache}/{NANO}/checkpoints/ckpt-0"


def test_the_first_command_of_a_person(publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A published detector by its name, a photograph, a folder for the picture."""
    monkeypatch.setenv("COCOFLOW_WEIGHTS", str(tmp_path / "cache"))
    (entry,) = write_images(tmp_path / "photos", 1)
    arguments = ["--model", NANO, "--images", tmp_path / "photos", "--draw", tmp_path / "drawn"]
    assert pipeline_runner.main(["predict", *map(str, arguments)]) == 0
    with Image.open(tmp_path / "drawn" / entry["file_name"]) as picture:
        assert picture.size == (entry["width"], entry["height"])
    assert publisher.asked == [PATH]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [NANO]


def test_mistakes_are_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert pipeline_runner.main(["weights", "fetch", "efficientdet-b0"]) == 2
    assert "no published weights named 'efficientdet-b0'. The nearest is effic" in capsys.readouterr().err
    assert pipeline_runner.main(["weights", "fetch", "efficientdet-d0", "--cache", str(tmp_path)]) == 1
    assert "not in the cache of weights, and COCOFLOW_OFFLINE is set" in capsys.readouterr().err
