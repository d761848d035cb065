"""`import-checkpoint` as a user calls it."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from detection import load_detector
from detection.datasets.annotations.coco_categories import COCO_CATEGORIES
from detection.datasets.demo_data import make_demo_data
from detection.inference.restore import load_trained
from detection.types import ImageInfo
from pipeline_runner import main
from schemas.artifacts import CHECKPOINTS, CONFIG_YAML, IMPORT_JSON, INIT_REPORT_JSON, LABELS_JSON
from schemas.config.config_io import load_config
from tests.detection.interop.automl.checkpoints import SMALL, random_weights, save_named
from tests.detection.interop.od_api.original_faster_rcnn import OdApi, RandomNetwork, short_resnet
from tests.detection.interop.tpu_mask_rcnn.original import SMALL as SMALL_HEADS
from tests.detection.interop.tpu_mask_rcnn.original import Original, save_original
from tests.full_disk import no_file_above
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

MODEL, OVERRIDES = SMALL[0].partition("=")[2], SMALL[1]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a TF1 checkpoint of three classes."""
    folder = tmp_path_factory.mktemp("checkpoint")
    save_named(folder / "model", random_weights(3), random_weights(3, seed=1))
    return folder


def call(checkpoint: str | Path, output: str | Path, *flags: str) -> int:
    """Flags given twice count the last time."""
    common = ["--from", "automl", "--checkpoint", str(checkpoint), "--model", MODEL, "--output", str(output)]
    return main(["import-checkpoint", *common, "--set", OVERRIDES, *flags])


def test_the_model_folder(tmp_path: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    labels = tmp_path / "labels.pbtxt"
    labels.write_text("item { id: 1 name: 'cat' } item { id: 3 name: 'dog' }")
    output = tmp_path / "out" / "model"
    assert call(checkpoint, output, "--label-map", str(labels), "--set", "model.image_size=96") == 0
    names = sorted(path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())
    kept = [f"{CHECKPOINTS}/ckpt-0.data-00000-of-00001", f"{CHECKPOINTS}/ckpt-0.index"]
    assert names == sorted([*kept, CONFIG_YAML, IMPORT_JSON, LABELS_JSON])
    assert json.loads((output / LABELS_JSON).read_text()) == [
        {"id": 1, "name": "cat"},
        {"id": 2, "name": None},
        {"id": 3, "name": "dog"},
    ]
    config = load_config(output / CONFIG_YAML)
    assert (config.model.name, config.model.image_size) == (MODEL, 96)
    assert config.model.postprocess == {"nms": "gaussian"}
    report = json.loads((output / IMPORT_JSON).read_text())
    assert (report["checkpoint"], report["step"], report["unused"]) == (str(checkpoint / "model"), 700, [])
    printed = capfd.readouterr()
    assert printed.out.splitlines() == [str(output)]
    for part in (
        rf"checkpoint {re.escape(str(checkpoint))}/model, step 700",
        r"EMA weights of \d+ of \d+ variables; using the EMA weights",
        "3 classes, 2 of them in the label map",
        "1 classes have no category; their detections are not reported",
    ):
        assert re.search(part, printed.err), part


def test_raw_weights_and_cloud_storage(
    tmp_path: Path, checkpoint: Path, gcs: Bucket, capfd: pytest.CaptureFixture[str]
) -> None:
    remote = upload(checkpoint, f"{gcs.path}/checkpoint")
    flags = ["--weights", "raw", "--set", "model.postprocess.nms=hard"]
    assert call(remote, f"{gcs.path}/model", *flags) == 0
    messages = capfd.readouterr().err
    assert re.search(r"raw weights of \d+ variables, no EMA weights", messages)
    assert "3 classes, named by their ids: pass --label-map for names" in messages
    model = load_detector(f"{gcs.path}/model")
    assert model.network.exported_from is not None
    assert model.network.exported_from.weights == "raw"
    assert [category["name"] for category in model.categories] == ["1", "2", "3"]
    assert model.network.config.model.postprocess == {"nms": "hard"}


def test_a_faster_rcnn_of_coco(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """91 outputs of TPU Mask R-CNN are the background and COCO's 90 ids."""
    network = Original(classes=91, masks=False)
    save_original(tmp_path / "tf1" / "model.ckpt-22500", network.construct() | {"more/kernel": np.zeros(3, np.float32)})
    output = tmp_path / "model"
    flags = ["--from", "tpu-mask-rcnn", "--checkpoint", str(tmp_path / "tf1"), "--output", str(output)]
    flags += ["--set", "model.image_size=64", "--set", f"model.overrides={json.dumps(SMALL_HEADS)}"]
    assert main(["import-checkpoint", *flags, "--model", "mask-rcnn-r50"]) == 1
    assert "is of faster-rcnn-r18, not of mask-rcnn-r50. Pass --model faster-rcnn-r18" in capfd.readouterr().err
    assert main(["import-checkpoint", *flags, "--model", "faster-rcnn-r18"]) == 0
    messages = capfd.readouterr().err
    for part in (
        "model.ckpt-22500, step 22500",
        f"raw weights of {len(network.variables)} variables, no EMA weights",
        "90 classes: COCO's 80 categories by id",
        "10 classes have no category; their detections are not reported",
        "1 variables of the checkpoint are not in the network: more/kernel",
    ):
        assert part in messages
    report = json.loads((output / IMPORT_JSON).read_text())
    assert (report["unused"], report["missing"]) == (["more/kernel"], [])
    categories = json.loads((output / LABELS_JSON).read_text())
    assert {one["id"]: one["name"] for one in categories if one["name"] is not None} == COCO_CATEGORIES


def test_a_backbone_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    network = Original()
    network.backbone(tf.zeros([1, 64, 64, 3]))
    save_original(tmp_path / "resnet" / "model", network.variables)
    flags = ["--from", "tpu-mask-rcnn", "--checkpoint", str(tmp_path / "resnet"), "--model", "mask-rcnn-r18"]
    flags += ["--set", f"model.overrides={json.dumps(SMALL_HEADS)}", "--output", str(tmp_path / "model")]
    assert main(["import-checkpoint", *flags]) == 0
    layers = {"fpn": 8, "rpn": 3, "box_head": 4, "mask_head": 6}  # each with a kernel and a bias
    assert "only a backbone: 42 variables of the network are not in the checkpoint. Start" in capfd.readouterr().err
    assert not (tmp_path / "model" / LABELS_JSON).exists()
    missing = json.loads((tmp_path / "model" / IMPORT_JSON).read_text())["missing"]
    assert Counter(path.partition("/")[0] for path in missing) == {part: 2 * count for part, count in layers.items()}


def od_api_flags(network: RandomNetwork, folder: Path, *flags: str) -> list[str]:
    network.write(folder / "checkpoint" / "ckpt-26")
    given = ["--from", "od-api", "--checkpoint", str(folder / "checkpoint"), "--output", str(folder / "model")]
    return ["import-checkpoint", *given, "--model", "faster-rcnn-r50", "--set", "model.image_size=64", *flags]


@short_resnet()
def test_a_faster_rcnn_of_the_object_detection_api(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    network = OdApi(classes=90)
    network.construct()
    assert main(od_api_flags(network, tmp_path, "--model", "mask-rcnn-r101")) == 1
    right = "faster-rcnn-r50 or mask-rcnn-r50 or faster-rcnn-r50-c4"
    assert f"is of {right}, not of mask-rcnn-r101. Pass" in capfd.readouterr().err
    assert main(od_api_flags(network, tmp_path, "--model", "mask-rcnn-r50")) == 0
    messages = capfd.readouterr().err
    for part in (
        "ckpt-26, step 25000",
        "90 classes: COCO's 80 categories by id",
        "12 variables of the network are not in the checkpoint: mask_head/conv2d_1/kernel, ",
        "Start a training from it with train.init.skip_mismatch=true",
        "the mask head starts from random weights: ",
    ):
        assert part in messages
    report = json.loads((tmp_path / "model" / IMPORT_JSON).read_text())
    assert (len(report["missing"]), len(report["differences"]), report["unused"]) == (12, 1, [])


def test_without_model_a_pipeline_config_has_to_be_beside_the_checkpoint(
    tmp_path: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "zoo"
    shutil.copytree(checkpoint, folder / "checkpoint")
    flags = ["import-checkpoint", "--checkpoint", str(folder), "--output", str(tmp_path / "out")]
    assert main([*flags, "--from", "automl"]) == 2
    assert "--model is missing. Pass --model with the name of the detector." in capfd.readouterr().err
    assert main([*flags, "--from", "od-api"]) == 2
    assert "--model is missing, and there is no pipeline.config beside the checkpoint." in capfd.readouterr().err
    (folder / "pipeline.config").write_text("model {\n  experimental_model {}\n}")
    assert main([*flags, "--from", "od-api"]) == 2
    message = capfd.readouterr().err
    assert "pipeline.config: not supported here:\n  line 2: model.experimental_model: no such model here" in message
    assert "Pass --model with the name of a detector, for its settings." in message
    # With --model, the detector has its own settings.
    assert main([*flags, "--from", "od-api", "--model", "efficientdet-d0"]) == 1
    assert "not a checkpoint of the Object Detection API's EfficientDet" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_pipeline_config_of_another_model_is_named(
    oracle_dir: Path, tmp_path: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "zoo"
    shutil.copytree(checkpoint, folder / "checkpoint")
    shutil.copy(oracle_dir / "od_api/ssd_mobilenet_v2/pipeline.config", folder)
    flags = ["import-checkpoint", "--checkpoint", str(folder), "--output", str(tmp_path / "out"), "--from", "od-api"]
    assert main([*flags, "--model", "centernet-r50"]) == 2
    message = capfd.readouterr().err
    assert re.search(r"--model centernet-r50, but \S+/pipeline\.config describes ssd-\S+: ", message)
    assert "Leave out --model, or move the file away." in message


@pytest.mark.extended  # two detectors are traced
@short_resnet()
def test_trainings_start_from_the_object_detection_api(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The recipes of the docs: boxes, and masks on the same network."""
    network = OdApi(classes=10)
    network.construct()
    labels = tmp_path / "labels.pbtxt"
    labels.write_text("".join(f"item {{ id: {number + 1} name: '{number}' }}\n" for number in range(10)))
    make_demo_data(tmp_path / "digits", train_images=2, eval_images=2)
    keys = ["train.steps=1", "train.batch_size=2", f"train.init.checkpoint={tmp_path / 'model'}"]
    for name, more in (("faster-rcnn-r50", []), ("mask-rcnn-r50", ["train.init.skip_mismatch=true"])):
        flags = od_api_flags(network, tmp_path, "--model", name, "--label-map", str(labels))
        assert main(flags) == 0
        capfd.readouterr()
        config, output = tmp_path / "model" / CONFIG_YAML, tmp_path / name
        assignments = [word for key in (*keys, *more) for word in ("--set", key)]
        data = ["--data", str(tmp_path / "digits"), "--output", str(output)]
        assert main(["train", "--config", str(config), *data, *assignments]) == 0
        assert "trained with other" not in capfd.readouterr().err
        report = json.loads((output / INIT_REPORT_JSON).read_text())["warm_start"]
        assert (report["loaded_in_part"], report["new_categories"], report["unused_there"]) == ([], [], [])
        assert len(report["not_there"]) == (12 if more else 0)
        shutil.rmtree(tmp_path / "model")


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--from", "tpu-mask-rcnn"], 2, "efficientdet-nano: not a Faster R-CNN or Mask R-CNN, so TPU Mask R-CNN has"),
        (["--from", "od-api"], 1, "not a checkpoint of the Object Detection API's EfficientDet: stem_conv2d/kernel, "),
        (["--set", "train.steps=3"], 2, "--set train.steps=3: set keys of the section model only"),
        (["--set", "model.name=efficientdet-d1"], 2, "set keys of the section model only; --model sets its name"),
        (["--model", "efficientdet-d99"], 2, "no such detector. The nearest is efficientdet-d"),
        (["--checkpoint", "s3://bucket/model"], 2, "--checkpoint"),
        (["--checkpoint", "nowhere"], 1, "nowhere: no such file or folder"),
        (["--model", "efficientdet-d1", "--set", "model.overrides={}"], 1, "is of no known variant: it has 6"),
        (["--label-map", "none.pbtxt"], 1, "none.pbtxt"),
    ],
)
def test_errors_leave_nothing(
    tmp_path: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str], *, flags: list[str], code: int, message: str
) -> None:
    assert call(checkpoint, tmp_path / "model", *flags) == code
    assert message in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with no_file_above(100_000):
        assert call(checkpoint, tmp_path / "model") == 1
    assert "the imported checkpoint cannot be written: " in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_content_is_kept(tmp_path: Path, checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert call(checkpoint, tmp_path) == 1
    assert str(tmp_path) in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "has_ema"),
    [
        # test_detectors.py compares the outputs of its EMA weights.
        pytest.param("name_based", True, marks=pytest.mark.extended),
        ("object_based/model", False),
    ],
)
def test_an_imported_model_answers_as_the_original(
    oracle_dir: Path, tmp_path: Path, kind: str, *, has_ema: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Checkpoints and outputs of the original code: TF1 with EMA weights, and TF2."""
    oracle = oracle_dir / "efficientdet_d0"
    flags = ["--from", "automl", "--checkpoint", str(oracle / kind), "--model", "efficientdet-d0"]
    # The original's inference keeps all anchors, each with its best class.
    options = "{nms: gaussian, one_class_per_anchor: true, pre_nms_top_k: 20000, score_threshold: 0.05}"
    flags += ["--set", "model.image_size=128", "--set", f"model.postprocess={options}"]
    assert main(["import-checkpoint", *flags, "--output", str(tmp_path / "d0")]) == 0
    said = "using the EMA weights" if has_ema else "no EMA weights"
    assert said in capfd.readouterr().err
    trained = load_trained(tmp_path / "d0")
    assert trained.exported_from is not None
    assert trained.exported_from.weights == ("ema" if has_ema else "raw")
    assert json.loads((tmp_path / "d0" / IMPORT_JSON).read_text())["unused"] == []
    with np.load(oracle / "outputs.npz") as expected:
        images = tf.constant(expected["image_normalised"])
        outputs = trained.detector(images)
        named = trained.detector.named_outputs(outputs)
        assert set(named) == {f"{part}_p{level}" for part in ("class", "box") for level in range(3, 8)}
        for name, values in named.items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-6, atol=1e-6)
        info = ImageInfo(original_size=tf.fill([1, 2], 192.0), scale=tf.fill([1, 2], 1 / 1.5))
        detections = trained.detector.detect(outputs, info)
        assert detections.num.numpy() == expected["perclass_gaussian_num"]
        np.testing.assert_allclose(detections.scores, expected["perclass_gaussian_scores"], atol=1e-5)
        np.testing.assert_array_equal(detections.classes + 1, expected["perclass_gaussian_classes"])
        if has_ema:
            raw = load_trained(tmp_path / "d0", weights="raw").detector(images)
            assert np.abs(raw.class_logits[0] - expected["class_p3"]).max() > 0.1, "raw weights are those plus noise"
