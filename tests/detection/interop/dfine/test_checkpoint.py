"""Import of D-FINE's network from its authors' files and Hugging Face's, which give the authors' outputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from detection.datasets.annotations.coco_categories import COCO_CATEGORIES
from detection.datasets.importers.label_map import read_label_map
from detection.interop.dfine.checkpoint import DFineFormat
from detection.interop.import_checkpoint import import_checkpoint
from detection.models.registry import build_detector, detector_from_config
from detection.weights.checkpoint_format import row_categories
from detection.weights.imported_model import ImportedModel, import_model
from schemas.config.config_io import load_config
from schemas.errors import CocoflowError, ConfigError, DataError
from tests.detection.models.dfine import original

RELU = "model.overrides.decoder.activation=relu"
FORMATS = ("released.pth", "training.pth", "model.safetensors")


def read(path: Path, *assignments: str, name: str = "dfine-n", **options: Any) -> ImportedModel:
    keys = [f"model.name={name}", *(assignments or (RELU,))]
    return import_model(DFineFormat, path, load_config(None, keys), **options)


def test_the_formats_give_the_outputs_of_the_authors(dfine_n: Path, oracle_dir: Path) -> None:
    _, arrays, images = original.read_case(oracle_dir / "dfine", "n256_eval")
    models = [read(dfine_n / name, RELU, "model.image_size=256") for name in FORMATS]
    assert [len(model.ema) for model in models] == [0, len(models[1].raw), 0]
    expected = dict(models[0].raw)
    for model in models:
        assert (model.unused, model.missing) == ((), ())
        assert [one["name"] for one in model.categories or ()] == list(COCO_CATEGORIES.values())
        assert model.config.model.resize.mode == "stretch"
        for path, values in (model.ema or model.raw).items():
            np.testing.assert_array_equal(values, expected[path], err_msg=path)
    detector = detector_from_config(models[0].config.model, models[0].categories or [])
    for variable in detector.variables:
        variable.assign(expected[variable.path])
    outputs = detector.named_outputs(detector(tf.constant(images)))
    np.testing.assert_allclose(outputs["logits"], arrays["logits"][-1], atol=1e-4)
    np.testing.assert_allclose(outputs["boxes"], arrays["boxes"][-1], atol=1e-5)


def test_of_a_training_the_raw_weights_are_others(dfine_n: Path) -> None:
    model = read(dfine_n / "training.pth", weights="raw")
    assert not model.ema
    path = "decoder/classes_0/kernel"
    assert not np.array_equal(model.raw[path], read(dfine_n / "released.pth").raw[path])
    with pytest.raises(DataError, match=r"released\.pth: has no EMA weights"):
        read(dfine_n / "released.pth", weights="ema")


@pytest.mark.parametrize(
    ("name", "assignments", "error", "message"),
    [
        ("dfine-n", ["model.image_size=640"], ConfigError, "Pass --set model.overrides.decoder.activation=relu"),
        ("dfine-s", [RELU], DataError, r"the checkpoint is of dfine-n, not of dfine-s\. Pass --model dfine-n"),
        ("efficientdet-d0", [RELU], ConfigError, "decoder.activation|no such field|not a D-FINE"),
    ],
)
def test_what_does_not_fit_is_told(
    dfine_n: Path, name: str, assignments: list[str], error: type[CocoflowError], message: str
) -> None:
    with pytest.raises(error, match=message):
        read(dfine_n / "released.pth", *assignments, name=name)


def test_keys_that_equal_the_values_are_refused(dfine_n: Path, tmp_path: Path) -> None:
    """Hugging Face's first conversion of N had them."""
    tensors = load_file(dfine_n / "model.safetensors")
    key = "model.decoder.layers.1.self_attn.k_proj.weight"
    save_file(tensors | {key: tensors[key.replace("k_proj", "v_proj")]}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"layers\.1\.self_attn\.k_proj\.weight equals the values"):
        read(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:-9])
    with pytest.raises(DataError, match=r"model\.safetensors: cannot be read as a safetensors file"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7, 3, 5], [3, 5, 7]),  # as many as classes: in order
        ([1, 2], [0, 1, 2]),  # rows are ids
    ],
)
def test_categories_of_a_label_map(dfine_n: Path, tmp_path: Path, ids: list[int], expected: list[int]) -> None:
    items = "".join(f"item {{ id: {number} name: 'n{number}' }}\n" for number in ids)
    (tmp_path / "map.pbtxt").write_text(items)
    categories = row_categories(3, read_label_map(tmp_path / "map.pbtxt"))
    assert [one["id"] for one in categories] == expected
    assert [one["name"] for one in categories] == [f"n{one}" if one in ids else None for one in expected]


@pytest.mark.extended
@pytest.mark.parametrize("name", ["dfine-x", "dfine-m"])
def test_every_variable_of_a_variant_has_a_name_of_its_own(name: str) -> None:
    detector = build_detector(name, num_classes=3, image_size=64)
    shapes = {variable.path: tuple(variable.shape) for variable in detector.variables}
    sources = DFineFormat({}, "x").sources(shapes, detector.config)
    assert len({one.names for one in sources.values()}) == len(shapes)


def test_the_command_writes_a_model(dfine_n: Path, tmp_path: Path) -> None:
    import_checkpoint(
        program="dfine",
        checkpoint=str(dfine_n / "released.pth"),
        model="dfine-n",
        output=str(tmp_path / "model"),
        assignments=[RELU],
    )
    assert (tmp_path / "model" / "import.json").is_file()
