"""`export` as a user calls it: every format of one model detects the same."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from detection.inference.detectors import open_detector
from detection.inference.formats.saved_model import SavedModelDetector, SignatureDetector
from detection.inference.restore import (
    ExportedFrom,
    load_trained,
    read_exported_from,
    read_model_categories,
    read_model_config,
)
from detection.input_pipeline.network_input import fit_to_input
from detection.models.detector import Detector
from detection.storage import outputs
from detection.types import EncodedImage, ImageInfo
from pipeline_runner import main
from schemas import features
from schemas.artifacts import BEST, CHECKPOINTS, CONFIG_YAML, LITERT_FILE, METRICS_JSON, MODEL_JSON, VALIDATION
from schemas.config.config_io import to_yaml
from schemas.errors import DataError
from tests.detection.export.exported_models import (
    STEP,
    built_in_ops,
    export_config,
    random_detector,
    random_images,
    write_checkpoint,
    write_images,
    write_training,
)
from tests.detection.mask_keypoint_data import save_model
from tests.detection.training.tiny_run import CATEGORIES
from tests.storage_emulator.fixture import Bucket

IDS = [category["id"] for category in CATEGORIES]


@pytest.fixture(scope="module")
def detector() -> Detector:
    return random_detector()


@pytest.fixture(scope="module")
def training(detector: Detector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("training"), detector)


@pytest.fixture(scope="module")
def images() -> list[EncodedImage]:
    return random_images()


@pytest.fixture(scope="module")
def saved_model(training: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(training, tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture(scope="module")
def in_memory(detector: Detector, images: list[EncodedImage]) -> dict[str, np.ndarray]:
    """The detections of `Detector.detect` itself."""
    fitted = [
        fit_to_input(
            tf.io.decode_png(image.encoded, channels=3),
            image_size=detector.image_size,
            resizing=detector.resizing,
            mean=detector.pixel_mean,
            std=detector.pixel_std,
        )
        for image in images
    ]
    info = ImageInfo(*(tf.stack([getattr(one, field) for _, one in fitted]) for field in ImageInfo._fields))
    found = detector.detect(detector(tf.stack([inputs for inputs, _ in fitted]), training=False), info)
    assert found.num.numpy().min() > 5
    return {
        "detection_boxes": found.boxes.numpy(),
        "detection_scores": found.scores.numpy(),
        "detection_classes": np.array(IDS)[found.classes.numpy()],
        "num_detections": found.num.numpy(),
    }


def export(model: Path, output: Path | str, *flags: str) -> Any:
    assert main(["export", "--model", str(model), "--output", str(output), *flags]) == 0
    return output


@pytest.fixture(scope="module")
def signatures(saved_model: Path) -> Iterator[Mapping[str, Any]]:
    loaded = tf.saved_model.load(str(saved_model))
    yield loaded.signatures
    del loaded  # signatures do not keep their variables alive


def answer(signature: Any, **inputs: Any) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in signature(**inputs).items()}


def example_of(image: EncodedImage) -> bytes:
    feature = {features.ENCODED: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.encoded]))}
    return bytes(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def test_the_saved_model_detects_as_the_detector_in_memory(
    saved_model: Path,
    signatures: Mapping[str, Any],
    images: list[EncodedImage],
    in_memory: dict[str, np.ndarray],
    detector: Detector,
) -> None:
    assert set(signatures) == {"serving_default", "serving_images", "serving_examples"}
    encoded = tf.constant([image.encoded for image in images])
    by_image = answer(signatures["serving_default"], images=encoded)
    for name, values in in_memory.items():  # another graph: the order of additions differs
        np.testing.assert_allclose(by_image[name], values, atol=1e-5, err_msg=name)
    examples = answer(signatures["serving_examples"], examples=tf.constant([*map(example_of, images), b""]))
    for name, values in by_image.items():
        np.testing.assert_array_equal(examples[name][: len(images)], values)
    assert (examples["valid"][-1], examples["num_detections"][-1]) == (False, 0)
    pixels = tf.io.decode_png(images[1].encoded, channels=3)[tf.newaxis]
    for name, values in answer(signatures["serving_images"], images=pixels).items():
        np.testing.assert_allclose(values[0], by_image[name][1], atol=1e-6)

    assert read_model_categories(saved_model) == CATEGORIES
    assert read_exported_from(saved_model) == ExportedFrom(STEP, "ema")
    again = load_trained(saved_model).detector
    for one, other in zip(again.variables, detector.variables, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_checkpoint_detects_as_its_saved_model(
    signatures: Mapping[str, Any], training: Path, images: list[EncodedImage]
) -> None:
    for one, other in zip(
        open_detector(training / "checkpoints" / f"ckpt-{STEP}", batch_size=4).detect(images),
        SignatureDetector(signatures["serving_default"], batch_size=4).detect(images),
        strict=True,
    ):
        np.testing.assert_array_equal(one.rows, other.rows)


@pytest.fixture(scope="module")
def run(training: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training, validated: its best checkpoint is not its newest."""
    run = tmp_path_factory.mktemp("run") / "run"
    shutil.copytree(training, run)
    best = run / VALIDATION / BEST
    best.mkdir(parents=True)
    for file in (run / CHECKPOINTS).iterdir():
        file.rename(best / file.name)
    (best / METRICS_JSON).write_text(json.dumps({"step": STEP}))
    write_checkpoint(run, random_detector(), step=STEP + 1)
    (run / CONFIG_YAML).write_text(to_yaml(export_config("train.validation.every=1")))
    return run


def test_a_person_chooses_the_checkpoint(
    run: Path, images: list[EncodedImage], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(images[0].encoded)
    command = ["predict", "--model", str(run), "--images", str(picture), "--output", str(tmp_path / "detections.json")]
    assert main([*command, "--checkpoint", "newest"]) == 0
    assert f"using the model {run / CHECKPOINTS / f'ckpt-{STEP + 1}'}" in " ".join(capfd.readouterr().err.split())
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--checkpoint", "last"])
    assert "--checkpoint: last: pass newest, best or a step" in capfd.readouterr().err


def test_raw_weights_of_the_best_checkpoint_a_fixed_batch_and_the_boxes_of_all_anchors(
    run: Path, training: Path, images: list[EncodedImage], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ("--weights", "raw", "--no-nms", "--batch-size", "2")
    folder = export(run, tmp_path / "model", *flags)
    assert f"raw weights of step {STEP}: 2 images per call, without non-maximum" in capfd.readouterr().out
    assert read_exported_from(folder) == ExportedFrom(STEP, "raw")
    loaded = tf.saved_model.load(str(folder))
    signature = loaded.signatures["serving_default"]
    assert signature.structured_input_signature[1]["images"].shape == [2]
    found = answer(signature, images=tf.constant([images[1].encoded, b"junk"]))
    assert set(found) == {"raw_detection_boxes", "raw_detection_scores", "valid"}
    assert found["valid"].tolist() == [True, False]
    assert not found["raw_detection_scores"][1].any()

    # The boxes by numpy, from the network's raw outputs.
    raw = load_trained(training, weights="raw").detector
    image = tf.io.decode_png(images[1].encoded, channels=3)
    fitted, info = fit_to_input(
        image, image_size=raw.image_size, resizing=raw.resizing, mean=raw.pixel_mean, std=raw.pixel_std
    )
    outputs = raw(fitted[tf.newaxis], training=False)
    deltas = np.concatenate([np.reshape(level, [-1, 4]) for level in outputs.box_deltas])
    logits = np.concatenate([np.reshape(level, [-1, len(IDS)]) for level in outputs.class_logits])
    sides = raw.anchors[:, 2:] - raw.anchors[:, :2]
    centers = (raw.anchors[:, 2:] + raw.anchors[:, :2]) / 2 + deltas[:, :2] * sides
    halves = np.exp(deltas[:, 2:]) * sides / 2
    boxes = np.concatenate([centers - halves, centers + halves], axis=1)
    boxes /= np.tile(info.scale * info.original_size, 2)
    np.testing.assert_allclose(found["raw_detection_boxes"][0], boxes, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["raw_detection_scores"][0], 1 / (1 + np.exp(-logits)), atol=1e-5)
    with pytest.raises(DataError, match="exported without non-maximum suppression"):
        open_detector(folder, batch_size=4)


def test_on_cloud_storage_a_fixed_batch_is_filled_and_keys_of_the_export_act(
    training: Path, gcs: Bucket, images: list[EncodedImage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path))
    flags = ("--batch-size", "3", "--set", "model.postprocess.max_detections=2")
    remote = export(training, f"{gcs.path}/model", *flags)
    results = SavedModelDetector(folder=remote, batch_size=8).detect(images)
    assert [len(one) for one in results] == [2] * len(images)
    assert read_model_config(remote).model.postprocess == {"max_detections": 2}
    assert main(["export", "--model", str(training), "--output", remote]) == 1


def test_a_litert_file_predicts_as_the_saved_model(
    training: Path, saved_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of built-in ops alone; test_mask_files.py runs the client beside such a file."""
    # A file does not know the image's size: boxes in the padding take places, of which there are enough here.
    places = ("--set", "model.postprocess.max_detections=2000")
    folder = export(training, tmp_path / "litert", "--format", "litert", *places)
    told = capfd.readouterr().out.splitlines()[1]
    match = re.fullmatch(
        r"compared with the SavedModel on 4 images: (\d+) of (\d+) detections have a counterpart \(category, IoU "
        r"0\.5\); scores differ by \S+ on average, (\S+) at most; boxes in pixels differ by \S+ on average, (\S+) "
        r"at most",
        told,
    )
    assert match is not None, told
    assert match[1] == match[2] > "0"
    assert float(match[3]) < 1e-4
    assert float(match[4]) < 0.01

    operators = set(built_in_ops((folder / LITERT_FILE).read_bytes()))
    assert {"CONV_2D", "NON_MAX_SUPPRESSION_V4"} <= operators
    assert not {"WHILE", "IF"} & operators
    paths = write_images(tmp_path / "images")
    expected, found = (
        predicted(model, tmp_path / "images", tmp_path / "predictions.json") for model in (saved_model, folder)
    )
    broken_litert_files_are_refused(folder, tmp_path / "images")
    counts = Counter(one["image_id"] for one in expected)
    assert len(counts) == len(paths)
    assert min(counts.values()) > 5
    found = [one for image in counts for one in [one for one in found if one["image_id"] == image][: counts[image]]]
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-4)
    # Scores of random weights may differ by less than the rounding of the two runtimes, and change places.
    left = list(found)
    for one in expected:
        same = [other for other in left if is_same(one, other)]
        assert same, one
        left.remove(same[0])


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compares two results; boxes may differ by fractions of 1e-4 of an image of 90 pixels."""
    ids = all(one[key] == other[key] for key in ("image_id", "category_id"))
    return (
        ids and abs(one["score"] - other["score"]) < 1e-4 and bool(np.allclose(one["bbox"], other["bbox"], atol=0.01))
    )


def broken_litert_files_are_refused(folder: Path, images: Path) -> None:
    """Cut files crash LiteRT: one with a checksum is not loaded, one without in a process of its own."""
    file = folder / LITERT_FILE
    content = file.read_bytes()
    middle = len(content) // 2
    description = json.loads((folder / MODEL_JSON).read_text())
    for broken in (content[:1000], content[:middle] + bytes(2000) + content[middle + 2000 :]):
        file.write_bytes(broken)
        with pytest.raises(DataError, match=rf"{LITERT_FILE}: the file was cut off or changed after its export"):
            open_detector(folder, batch_size=1)
    del description["sha256"]
    (folder / MODEL_JSON).write_text(json.dumps(description))
    file.write_bytes(content[:1000])
    with pytest.raises(DataError, match=rf"{LITERT_FILE}: the model cannot be run: .* not a valid"):
        open_detector(file, batch_size=1)
    (folder / MODEL_JSON).unlink()
    with pytest.raises(DataError, match=rf"no {MODEL_JSON}, the description of a model file"):
        open_detector(file, batch_size=1)


@pytest.mark.parametrize("broken", ["cut", "missing", "overwritten"])
def test_broken_weights_are_named(
    training: Path, saved_model: Path, tmp_path: Path, broken: str, capfd: pytest.CaptureFixture[str]
) -> None:
    models = {"trained": training, "saved": saved_model}
    weights = {
        "trained": Path("checkpoints", f"ckpt-{STEP}.data-00000-of-00001"),
        "saved": Path("variables", "variables.data-00000-of-00001"),
    }
    for name, model in models.items():
        copy = shutil.copytree(model, tmp_path / name)
        file = copy / weights[name]
        content = file.read_bytes()
        file.unlink()
        if broken == "cut":
            file.write_bytes(content[:1000])
        if broken == "overwritten":
            file.write_bytes(content[:5000] + bytes(2000) + content[7000:])
        (tmp_path / "1.png").write_bytes(random_images()[0].encoded)
        for command in (["export"], ["predict", "--images", str(tmp_path / "1.png")]):
            capfd.readouterr()
            assert main([*command, "--model", str(copy), "--output", str(tmp_path / "out")]) == 1
            said = capfd.readouterr().err
            assert "Traceback" not in said
            message = said.strip().splitlines()[-1]
            assert str(copy / weights[name]).partition(".data")[0] in message
            assert re.search("(?i)copy (it|the model) again", message)
        assert not (tmp_path / "out").exists()


def predicted(model: Path, images: Path, output: Path) -> list[dict[str, Any]]:
    assert main(["predict", "--model", str(model), "--images", str(images), "--output", str(output)]) == 0
    return list(json.loads(output.read_text()))


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--precision int8", 2, "--precision int8: for --format litert and mediapipe"),
        ("--delegate gpu", 2, "--delegate gpu: for --format mediapipe"),
        ("--format mediapipe --no-nms", 2, "use --delegate gpu"),
        ("--format mediapipe --batch-size 2", 2, "MediaPipe runs one image per call"),
        ("--format mediapipe --od-api-outputs", 2, "--od-api-outputs: for --format saved-model"),
        ("--format mediapipe", 2, "--format mediapipe with model.resize.mode = fit: MediaPipe stretches"),
        ("--format litert --precision int8", 2, "requires --calibration-data"),
        ("--format litert --calibration-data x", 2, "--calibration-data: for --precision int8"),
        (
            "--sample-images .",
            2,
            "--sample-images: for --format litert, onnx or mediapipe with non-maximum suppression",
        ),
        ("--batch-size 0", 2, "pass at least 1"),
        ("--format onnx --od-api-outputs", 2, "--od-api-outputs: for --format saved-model"),
        ("--set train.steps=3", 2, "--set train.steps: an export cannot change it; it can change model.postprocess"),
        ("--set model.postprocess.top=3", 2, "model.postprocess.top: no such field"),
        ("--output full", 1, "cannot write: not a new or empty folder"),
        ("--output full/file", 1, "--output full/file: this is a file. Name a folder."),
        ("--output full/file/out", 1, "/full/file is a file. Check the path"),
        ("--model nothing", 1, "no such file or folder"),
    ],
)
def test_refused_flags(refuse: Callable[[Sequence[str]], tuple[int, str]], flags: str, code: int, message: str) -> None:
    given, said = refuse(flags.split())
    assert given == code
    assert message in said


def test_an_output_that_cannot_be_is_refused_before_tensorflow_is_loaded(
    refuse: Callable[[Sequence[str]], tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.console.quiet_run", None)
    assert refuse(["--output", "full"])[0] == 1
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=10_000_000))
    code, said = refuse([])
    assert code == 1
    assert "out: needs at least 50 MB, and the disk of " in said


def test_a_disk_without_room_for_the_weights_is_refused_before_the_network_is_traced(
    refuse: Callable[[Sequence[str]], tuple[int, str]], detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = sum(variable.numpy().nbytes for variable in detector.variables)
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(outputs, "_SMALL", 0)
    monkeypatch.setattr("detection.export.export.export_saved_model", None)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=weights - 1))
    code, said = refuse([])
    assert code == 1
    assert "Free space, or choose another folder with --output." in said


@pytest.fixture(scope="module")
def rle_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its masks are those of whole images."""
    return save_model(tmp_path_factory.mktemp("masks") / "model", mask_output="rle")


@pytest.mark.parametrize("file", ["litert", "onnx"])
def test_masks_of_whole_images_are_refused_for_a_file(
    file: str, rle_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--model", str(rle_model), "--output", str(tmp_path / "out"), "--format", file]) == 2
    said = capfd.readouterr().err
    assert f"--format {file} with model.postprocess.mask_output = rle: a model file receives the resized" in said
    assert "mask_output=crops" in said
    assert not (tmp_path / "out").exists()


def test_outputs_of_the_object_detection_api(
    rle_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Masks are its crops; a category id that float32 does not hold is refused."""
    model = shutil.copytree(rle_model, tmp_path / "model")
    command = ["export", "--model", str(model), "--output", str(tmp_path / "out"), "--od-api-outputs"]
    assert main(command) == 2
    assert "mask_output = rle: the API's masks are crops" in capfd.readouterr().err
    crops = ("--set", "model.postprocess.mask_output=crops")
    assert main([*command, *crops]) == 0
    assert "outputs of the Object Detection API" in capfd.readouterr().out
    outputs = tf.saved_model.load(str(tmp_path / "out")).signatures["serving_default"].structured_outputs
    assert {"detection_masks", "detection_classes", "num_detections"} < set(outputs)
    assert {spec.dtype for spec in outputs.values()} == {tf.float32}

    labels = model / "assets.extra" / "categories.json"
    categories = json.loads(labels.read_text())
    categories[1]["id"] = 2**24 + 1
    labels.write_text(json.dumps(categories))
    assert main([*command[:-2], str(tmp_path / "none"), "--od-api-outputs", *crops]) == 2
    assert "the category id 16777217 is above 16777216, up to which integers are exact" in capfd.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.fixture
def refuse(
    training: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str]], tuple[int, str]]:
    """Calls the command in a folder, and returns its exit code and message; nothing is left there."""
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full", "file").touch()

    def call(flags: Sequence[str]) -> tuple[int, str]:
        code = main(["export", "--model", str(training), "--output", "out", *flags])
        assert [path.name for path in tmp_path.iterdir()] == ["full"]
        return code, capfd.readouterr().err

    return call


@pytest.mark.extended  # test_mediapipe.py compares files with the SavedModel
def test_a_mediapipe_file_predicts_as_the_saved_model(
    training: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], mediapipe_detect: Callable[..., Any]
) -> None:
    """Of the model on stretched images, though its training kept their aspect ratio: the difference is told."""
    write_images(tmp_path / "images")
    stretch = ("--set", "model.resize.mode=stretch", "--set", "model.postprocess.score_threshold=0.01")
    given = ("--format", "mediapipe", "--precision", "float16", "--sample-images", str(tmp_path / "images"))
    folder = export(training, tmp_path / "phone", *given, *stretch)
    told = capfd.readouterr().out
    assert "float16, for CPUs, 1 image per call" in told
    assert (
        "on stretched images instead of those of the training (resized by fit), and compared with the SavedModel"
        in told
    )
    assert main(["export", "--describe", str(folder)]) == 0
    assert "kind 40" in capfd.readouterr().out

    expected, found = (
        predicted(model, tmp_path / "images", tmp_path / "predictions.json")
        for model in (export(training, tmp_path / "saved", *stretch), folder)
    )
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in expected], abs=1e-3)
    assert {one["category_id"] for one in found} <= set(IDS)
    image = tf.io.decode_png((tmp_path / "images" / "0.png").read_bytes(), channels=3).numpy()
    (detections,) = mediapipe_detect(folder / LITERT_FILE, [image])
    scores = sorted((category.score for one in detections for category in one.categories), reverse=True)
    assert scores == pytest.approx([one["score"] for one in found if one["image_id"] == found[0]["image_id"]], abs=1e-3)

    (folder / "assets.extra" / "categories.json").write_text(json.dumps(CATEGORIES[:2]))
    with pytest.raises(DataError, match="its labels are not the categories beside it"):
        open_detector(folder, batch_size=1)
