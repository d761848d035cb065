"""D-FINE's published weights, their licences, and ImageNet weights of its backbone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import save_file

from detection.interop.import_checkpoint import import_checkpoint
from detection.models.registry import build_detector
from detection.pretrained.choice import initial_weights
from detection.pretrained.detectors import find_model, read_origin
from detection.pretrained.imagenet import load_imagenet_weights
from detection.weights.publications import NOT_CLEARED, OTHER_DETECTORS, require_licence
from detection.weights.torch_file import read_tensors
from schemas.artifacts import EXTRA_FILES, INIT_REPORT_JSON, WEIGHTS_JSON
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import ConfigError, DataError
from tests.detection.models.dfine import original
from tests.detection.pretrained.publisher import Publisher, running_publisher

SILU = "model.overrides.decoder.activation=swish"
PATH = "/deim.pth"


@pytest.fixture
def publisher(dfine_n: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Publisher]:
    """Serves the oracle's D-FINE-N as DEIM's, and as weights that are not cleared."""
    monkeypatch.delenv("COCOFLOW_OFFLINE")
    monkeypatch.setenv("COCOFLOW_WEIGHTS", str(tmp_path / "cache"))
    with running_publisher() as running:
        deim = OTHER_DETECTORS["deim-n"]._replace(origin=running.url + PATH)
        monkeypatch.setitem(OTHER_DETECTORS, "deim-n", deim)
        monkeypatch.setitem(OTHER_DETECTORS, "odd", deim._replace(name="odd", weights="odd", licence=NOT_CLEARED))
        running.files[PATH] = (dfine_n / "released.pth").read_bytes()
        yield running


def _config(*assignments: str) -> Config:
    return load_config(None, ["model.name=dfine-n", *assignments])


def test_weights_by_name_start_a_training_with_their_activation(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"decoder\.activation, so the published deim-n .*activation = swish"):
        initial_weights(_config("model.weights=deim-n"))
    with pytest.raises(ConfigError, match=r"model\.weights = deim-n: weights of dfine-n, not of dfine-s"):
        initial_weights(_config("model.weights=deim-n", "model.name=dfine-s"))
    assert publisher.asked == []
    found = initial_weights(_config("model.weights=deim-n", SILU, "model.overrides.decoder.queries=100"))
    assert found.checkpoint == str(tmp_path / "cache" / "deim-n") == find_model("deim-n")
    assert publisher.asked == [PATH]
    config = load_config(str(tmp_path / "cache" / "deim-n" / "config.yaml"))
    assert config.model.overrides["decoder"]["activation"] == "swish"


def test_a_licence_that_is_not_accepted_is_refused(publisher: Publisher) -> None:
    refused = r"odd, http.*: licence not-cleared is not in model\.weights_licences = Apache-2\.0, MIT, BSD"
    for call in (lambda: initial_weights(_config("model.weights=odd", SILU)), lambda: find_model("odd")):
        with pytest.raises(ConfigError, match=refused):
            call()
    assert publisher.asked == []
    folder = initial_weights(_config("model.weights=odd", SILU, f"model.weights_licences=[{NOT_CLEARED}]")).checkpoint
    origin = read_origin(f"{folder}/checkpoints/ckpt-0")
    assert origin is not None
    assert json.loads(Path(str(folder), "import.json").read_text())["published"] == origin
    with pytest.raises(ConfigError, match=refused):
        require_licence(origin, _config().model.weights_licences)


def test_a_licence_is_that_of_all_models_that_follow(tmp_path: Path) -> None:
    published = {"name": "odd", "origin": "x", "licence": NOT_CLEARED}
    (tmp_path / INIT_REPORT_JSON).write_text(json.dumps({"published": published}))
    assert read_origin(str(tmp_path / "checkpoints" / "ckpt-7")) == published
    pushed = tmp_path / "serving" / "1"
    (pushed / EXTRA_FILES).mkdir(parents=True)
    (pushed / EXTRA_FILES / WEIGHTS_JSON).write_text(json.dumps(published))
    assert read_origin(str(pushed / "variables" / "variables")) == published
    assert read_origin(str(tmp_path / "other" / "checkpoints" / "ckpt-7")) is None


def test_an_import_knows_a_published_file_by_its_name(dfine_n: Path, tmp_path: Path) -> None:
    file = tmp_path / "dfine_s_obj365.pth"
    file.write_bytes((dfine_n / "released.pth").read_bytes())
    arguments: dict[str, Any] = {"program": "dfine", "checkpoint": str(file), "model": "dfine-n"}
    arguments["assignments"] = ["model.overrides.decoder.activation=relu"]
    with pytest.raises(ConfigError, match=r"dfine-s-obj365, .*: licence not-cleared"):
        import_checkpoint(**arguments, output=str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_imagenet_weights_of_hgnet_are_for_the_detectors_inputs(
    dfine_n: Path, oracle_dir: Path, tmp_path: Path
) -> None:
    """The file's network has inputs of ImageNet's mean and standard deviation, D-FINE's of neither."""
    own = original.weights(oracle_dir / "dfine", "variables_n80.json")
    detector = build_detector("dfine-n", num_classes=3, image_size=64)
    backbone = detector.backbone
    for variable in backbone.variables:
        variable.assign(own[variable.path])
    tensors = {
        name.removeprefix("backbone."): value
        for name, value in read_tensors(dfine_n / "released.pth", lambda content: content["model"]).items()
        if name.startswith("backbone.")
    }
    save_file(
        {name: np.ascontiguousarray(value) for name, value in tensors.items()}
        | {"head.fc.weight": np.zeros([2, 2], np.float32)},
        tmp_path / "b0.safetensors",
    )
    pixels = np.random.default_rng(0).uniform(0, 255, (1, 64, 64, 3)).astype(np.float32)
    mean, std = 255 * np.array([0.485, 0.456, 0.406]), 255 * np.array([0.229, 0.224, 0.225])
    expected = backbone(tf.constant((pixels - mean) / std, tf.float32))
    report = load_imagenet_weights(detector, str(tmp_path / "b0.safetensors"))
    assert set(report.loaded) == {variable.path for variable in backbone.variables}
    assert report.unused == ("head.fc.weight",)
    found = backbone(tf.constant(pixels / 255.0, tf.float32))
    inside = (slice(None), slice(3, -3), slice(3, -3))  # at the border, the padding differs
    np.testing.assert_allclose(found[0][inside], expected[0][inside], atol=1e-4)
    save_file({"x": np.zeros(2, np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match=r"not weights of hgnetv2-b0: stem\.stem1\..* is missing"):
        load_imagenet_weights(detector, str(tmp_path / "other.safetensors"))
