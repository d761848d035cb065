"""`convert-config` as a user calls it."""

from pathlib import Path

import pytest

from detection.storage.files import read_text
from pipeline_runner import main
from schemas.config.config_io import from_yaml, load_config
from tests.detection.interop.od_api.test_pipeline_config import SSD
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

EMPTY_STEP = SSD.replace("num_steps: 100000", "num_steps: 100000\n  data_augmentation_options { remap_labels {} }")


@pytest.fixture
def pipeline_config(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.config"
    path.write_text(SSD)
    return path


def convert(program: str, original: str | Path, output: str | Path, *flags: str) -> int:
    return main(["convert-config", "--from", program, str(original), "--output", str(output), *flags])


def test_the_file_can_be_loaded(pipeline_config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = pipeline_config.parent / "new" / "cocoflow.yaml"
    assert convert("od-api", pipeline_config, output) == 0
    assert load_config(output).model.name == "ssd-mobilenet-v2"
    out, err = capfd.readouterr()
    assert out.splitlines()[-1] == str(output)
    assert "note: line 4: model.ssd.num_classes: 3 classes: those of the data set are used" in err
    assert output.read_text().startswith(f"# Converted from {pipeline_config}, a configuration of the TF Object")


def test_unsupported_fields_end_it_unless_they_are_accepted(
    pipeline_config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipeline_config.write_text(EMPTY_STEP)
    output = pipeline_config.parent / "cocoflow.yaml"
    assert convert("od-api", pipeline_config, output) == 2
    assert not output.exists()
    remark = "train_config.data_augmentation_options.remap_labels: "
    remark += "original_labels: Field required; new_label: Field required"
    err = capfd.readouterr().err
    assert f"not supported here:\n  line 35: {remark}\n" in err
    assert "--accept-unsupported" in err
    assert convert("od-api", pipeline_config, output, "--accept-unsupported") == 0
    assert f"not supported: line 35: {remark}" in capfd.readouterr().err
    assert f"#   line 35: {remark}\n" in output.read_text()
    assert load_config(output).train.steps == 100000


def test_hparams_and_params(tmp_path: Path) -> None:
    output = tmp_path / "cocoflow.yaml"
    assert convert("automl", "name=efficientdet-d0,num_epochs=30", output, "--batch-size", "8", "--trainer", "tf1") == 0
    config = load_config(output)
    assert (config.model.name, config.train.epochs, config.train.batch_size) == ("efficientdet-d0", 30, 8)
    assert config.model.postprocess == {"nms": "gaussian"}
    assert config.train.ema.include_batch_norm
    (tmp_path / "params.yaml").write_text("backbone: resnet101\n")
    assert convert("tpu-mask-rcnn", tmp_path / "params.yaml", output) == 0
    assert load_config(output).model.name == "mask-rcnn-r101"


def test_a_remote_configuration(gcs: Bucket, pipeline_config: Path) -> None:
    remote = upload(pipeline_config.parent, f"{gcs.path}/zoo")
    assert convert("od-api", f"{remote}/pipeline.config", f"{remote}/cocoflow.yaml") == 0
    assert from_yaml(read_text(f"{remote}/cocoflow.yaml")).train.steps == 100000


@pytest.mark.parametrize(
    ("program", "content", "message"),
    [
        ("od-api", b"\xff\xfe\x00model", "not a text file"),
        ("od-api", b"", "no `model { ... }`"),
        ("od-api", b"model { center_net { } }", "line 1: model.center_net"),
        ("od-api", b"model { ssd { num_classes: x } }", ":1:28"),
        ("automl", b"lr: 1", "The nearest is"),
        ("automl", b"[1, 2]", "hparams are a mapping"),
        ("tpu-mask-rcnn", b"{a: ]", "not a YAML file"),
        ("automl", b"image_size: -3", "model.image_size"),
    ],
)
def test_what_is_no_configuration(
    program: str, content: bytes, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "original").write_bytes(content)
    assert convert(program, tmp_path / "original", tmp_path / "out.yaml") == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "out.yaml").exists()


def test_flags(tmp_path: Path, pipeline_config: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert convert("od-api", pipeline_config, tmp_path / "out.yaml", "--batch-size", "8") == 2
    assert "--batch-size is of --from automl" in capfd.readouterr().err
    assert convert("od-api", tmp_path / "none", tmp_path / "out.yaml") == 1
    assert "no such file or folder" in capfd.readouterr().err
