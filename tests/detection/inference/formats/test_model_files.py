"""The description beside a model file, and what is refused of one."""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.export.model_description import description_json, write_model_file
from detection.inference.detectors import model_iou_types, open_detector
from detection.inference.formats.model_files import ModelDescription, model_folder, read_description
from detection.input_pipeline.network_input import fit_pixels, fit_to_input
from detection.models.detector import IMAGENET_MEAN, IMAGENET_STD
from detection.types import Resizing
from schemas.errors import DataError

DESCRIPTION = ModelDescription(
    format="litert",
    precision="int8",
    shape=(1, 96, 128, 3),
    resizing=Resizing((90, 120), "short_side", short_side=60, long_side=120),
    dtype="uint8",
    padding=(124.0, 117.5, 104.0),
    nms=True,
    masks=False,
    keypoints=False,
)


def test_it_reads_back_and_a_file_means_its_folder(tmp_path: Path) -> None:
    write_model_file(tmp_path, b"model", DESCRIPTION)
    assert read_description(tmp_path) == dataclasses.replace(DESCRIPTION, sha256=hashlib.sha256(b"model").hexdigest())
    assert model_folder(tmp_path / "model.tflite") == model_folder(tmp_path) == str(tmp_path)
    assert read_description(tmp_path / "other") is None


def test_what_is_refused(tmp_path: Path) -> None:
    write_model_file(tmp_path, b"no model", DESCRIPTION)
    with pytest.raises(DataError, match=r"model\.tflite: the model cannot be run: .*Export or copy it again"):
        open_detector(tmp_path, batch_size=1)
    assert model_iou_types(tmp_path) == ("bbox",)
    write_model_file(tmp_path, b"no model", dataclasses.replace(DESCRIPTION, masks=True))
    assert model_iou_types(tmp_path) == ("bbox", "segm")
    write_model_file(tmp_path, b"no model", dataclasses.replace(DESCRIPTION, nms=False))
    for refused in (lambda: model_iou_types(tmp_path), lambda: open_detector(tmp_path, batch_size=1)):
        with pytest.raises(DataError, match="exported without non-maximum suppression"):
            refused()
    (tmp_path / "model.json").write_text('{"format": "litert"}')
    with pytest.raises(DataError, match=r"model\.json: not the description"):
        open_detector(tmp_path / "model.tflite", batch_size=1)
    with pytest.raises(DataError, match="not a SavedModel"):
        open_detector(tmp_path / "nothing", batch_size=1)


_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.5,
    10**400,
    float("nan"),
    float("inf"),
    "x",
    "\ud800",
    [],
    [[]],
    {},
    [7] * 9,
)


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each object and list of some JSON with each of its keys and positions."""
    for key, value in content.items() if isinstance(content, dict) else enumerate(content):
        yield content, key
        if isinstance(value, dict | list):
            yield from _places(value)


def test_whatever_stands_in_a_description_is_refused_or_possible(tmp_path: Path) -> None:
    content, path = description_json(DESCRIPTION), tmp_path / "model.json"
    refused: list[str] = []
    for parent, key in _places(content):
        before = parent[key]
        for value in _ODD:
            parent[key] = value
            path.write_text(json.dumps(content))
            try:
                read = read_description(tmp_path)
            except DataError as error:
                refused.append(str(error))
                continue
            assert read is not None
            assert read.shape[0] is None or read.shape[0] > 0
            assert 0 < read.resizing.size[0] <= read.image_size[0]
            assert 0 < read.resizing.size[1] <= read.image_size[1]
            assert np.isfinite(read.padding).all()
        parent[key] = before
    del content["input"]["resize"]["mode"]  # not the default one
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"input\.resize: .*a rule needs size, mode"):
        read_description(tmp_path)
    assert len(refused) > 150
    assert all(re.match(rf"{path}: not the description of an exported model.*[Ee]xport", one) for one in refused)


@pytest.mark.parametrize("size", [(40, 80), (90, 33), (96, 128), (7, 200)])
@pytest.mark.parametrize("resizing", [Resizing((96, 128)), Resizing((90, 120), "stretch"), DESCRIPTION.resizing])
def test_pixels_that_are_normalised_are_the_networks_input(size: tuple[int, int], resizing: Resizing) -> None:
    image = tf.constant(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))
    pixels, info = fit_pixels(image, image_size=(96, 128), resizing=resizing, padding=IMAGENET_MEAN)
    inputs, expected = fit_to_input(
        image, image_size=(96, 128), resizing=resizing, mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    mean, std = (np.array(values, np.float32) for values in (IMAGENET_MEAN, IMAGENET_STD))
    np.testing.assert_array_equal((pixels - mean) / std, inputs)
    for one, other in zip(info, expected, strict=True):
        np.testing.assert_array_equal(one, other)
