"""`evaluate`, `compare` and `predict` on gs:// paths, against the same commands on local ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import pipeline_runner
from detection.storage.atomic import write_text
from detection.storage.files import exists, list_folder, read_bytes, walk_files
from schemas.artifacts import ANALYSIS_JSON, BLESSING_JSON, DETECTIONS_JSON, METRICS_JSON
from tests.components.coco_evaluator.generated_records import generate_ground_truth, write_records
from tests.detection.coco.generated_cases import generate
from tests.detection.fake_detector import save_fake_detector
from tests.storage_emulator.fixture import Bucket
from tests.storage_emulator.folders import upload

INVALID = ["s3://b/x", "gs:/b/x", "gs://b//x", "file:///x"]


def call(*arguments: str | Path) -> int:
    return pipeline_runner.main(list(map(str, arguments)))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COCOFLOW_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Folder with the ground truth, its images, and the detections of two models."""
    folder = tmp_path / "files"
    (folder / "images").mkdir(parents=True)
    ground_truth, detections = generate(3)
    for image in ground_truth["images"]:
        image["file_name"] = f"{image['id']}.png"
        Image.new("RGB", (image["width"], image["height"])).save(folder / "images" / image["file_name"])
    fewer = [entry for entry in detections if entry["image_id"] % 2]
    for name, content in {"gt": ground_truth, "a": detections, "b": fewer}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_evaluating_files(files: Path, gcs: Bucket, capfd: pytest.CaptureFixture[str]) -> None:
    printed = []
    for root in (str(files), upload(files, f"{gcs.path}/files")):
        flags = ["--ground-truth", f"{root}/gt.json", "--detections", f"{root}/a.json", "--images", f"{root}/images"]
        assert call("evaluate", *flags, "--output", f"{root}/m.json", "--report", f"{root}/page.html") == 0
        printed.append(capfd.readouterr().out)
        assert "data:image/webp;base64" in read_bytes(f"{root}/page.html").decode()
    assert printed[0] == printed[1]
    assert read_bytes(f"{root}/m.json") == (files / "m.json").read_bytes()


def test_skipped_entries_are_listed_beside_the_metrics(files: Path, gcs: Bucket) -> None:
    tree = json.loads((files / "gt.json").read_text())
    tree["annotations"][0]["category_id"] = 999
    (files / "gt.json").write_text(json.dumps(tree))
    root = upload(files, f"{gcs.path}/files")
    flags = ["--ground-truth", f"{root}/gt.json", "--detections", f"{root}/a.json", "--skip-invalid"]
    assert call("evaluate", *flags, "--output", f"{root}/m.json") == 0
    assert len(read_bytes(f"{root}/m_skipped.jsonl").splitlines()) == 1


def test_comparing_files_and_folders(files: Path, gcs: Bucket, capfd: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        flags = ("--ground-truth", files / "gt.json", "--detections", files / f"{name}.json")
        assert call("evaluate", *flags, "--output", files / name / METRICS_JSON) == 0
        (files / name / DETECTIONS_JSON).write_bytes((files / f"{name}.json").read_bytes())
    printed: dict[str, list[str]] = {"": [], ".json": []}
    for root in (str(files), upload(files, f"{gcs.path}/files")):
        truth = ("--ground-truth", f"{root}/gt.json", "--images", f"{root}/images")
        for suffix, texts in printed.items():
            capfd.readouterr()
            output = f"{root}/changes{suffix}.html"
            assert call("compare", f"{root}/a{suffix}", f"{root}/b{suffix}", *truth, "--output", output) == 0
            texts.append(capfd.readouterr().out)
            assert "data:image/webp;base64" in read_bytes(output).decode()
    assert all(texts[0] == texts[1] for texts in printed.values())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [save_fake_detector(root / f"model-{shift}", shift=shift) for shift in (0, 1)]


@pytest.fixture(scope="module")
def ground_truth(tmp_path_factory: pytest.TempPathFactory, models: list[Path]) -> tuple[Path, dict[str, Any]]:
    """Folder of images, and what is on them."""
    folder = tmp_path_factory.mktemp("images")
    return folder, generate_ground_truth(folder / "val", models, seed=1)


def test_predicting(
    tmp_path: Path,
    gcs: Bucket,
    models: list[Path],
    ground_truth: tuple[Path, dict[str, Any]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Folders and single files; ids from the ground truth, or by the order of the paths."""
    folder, tree = ground_truth
    remote = {name: f"{gcs.path}/{name}" for name in ("images", "model", "gt.json", "out")}
    upload(folder, remote["images"])
    upload(models[0], remote["model"])
    write_text(f"{remote['images']}/notes.txt", "no image")
    write_text(remote["gt.json"], json.dumps(tree))
    (tmp_path / "gt.json").write_text(json.dumps(tree))
    local = {"images": str(folder), "model": str(models[0]), "gt.json": f"{tmp_path}/gt.json", "out": f"{tmp_path}/out"}
    for place in (local, remote):
        flags = ["--model", place["model"], "--ground-truth", place["gt.json"], "--draw", f"{place['out']}/drawn.png"]
        assert call("predict", "--images", place["images"], "--output", f"{place['out']}/dt.json", *flags) == 0
    for name in ("dt.json", "drawn.png"):
        assert read_bytes(f"{remote['out']}/{name}") == read_bytes(f"{local['out']}/{name}")
    capfd.readouterr()
    one = f"{remote['images']}/val/picture_03.png"
    assert call("predict", "--model", remote["model"], "--images", one, "--output", f"{gcs.path}/one.json") == 0
    assert capfd.readouterr().out.splitlines() == [f"{gcs.path}/one.json", f"{gcs.path}/one_images.json"]
    assert json.loads(read_bytes(f"{gcs.path}/one_images.json"))["images"][0]["file_name"] == one


@pytest.mark.slow
def test_evaluating_a_model(
    tmp_path: Path, gcs: Bucket, models: list[Path], ground_truth: tuple[Path, dict[str, Any]]
) -> None:
    """A failed evaluation leaves nothing; a folder with content is refused."""
    write_records(tmp_path / "examples", ground_truth[1], ground_truth[0] / "val")
    upload(tmp_path / "examples", f"{gcs.path}/examples")
    for model in models:
        upload(model, f"{gcs.path}/{model.name}")
    flags = ["--set", "evaluate.analysis.replicates=10", "--set", "evaluate.thresholds.improvement={AP: 0.001}"]
    out = f"{gcs.path}/out"

    def evaluate(root: str, destination: str, first: str = "model-0") -> int:
        pair = ["--model", f"{root}/{first}", "--baseline", f"{root}/model-1"]
        return call("evaluate", *pair, "--examples", f"{root}/examples", "--output", destination, *flags)

    local = tmp_path / "local"
    local.mkdir()
    for model in models:
        (local / model.name).symlink_to(model)
    (local / "examples").symlink_to(tmp_path / "examples")
    assert evaluate(str(local), str(tmp_path / "out")) == 0
    gcs.emulator.fail("status", status=403, method="POST", path=f"name=out/{BLESSING_JSON}", times=0)
    assert evaluate(gcs.path, out) == 1
    gcs.emulator.clear()
    assert walk_files(out) == []
    write_text(f"{out}/.unfinished", "of a killed process")
    write_text(f"{out}/{METRICS_JSON}", "half")
    assert evaluate(gcs.path, out) == 0
    assert list_folder(out) == list_folder(tmp_path / "out")
    for name in (METRICS_JSON, DETECTIONS_JSON, ANALYSIS_JSON, BLESSING_JSON):
        assert read_bytes(f"{out}/{name}") == (tmp_path / "out" / name).read_bytes()
    assert evaluate(gcs.path, out) == 1
    assert evaluate(gcs.path, f"{gcs.path}/other", first="none") == 1
    assert not exists(f"{gcs.path}/other")


@pytest.mark.parametrize("path", INVALID)
@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("evaluate", ["--ground-truth", "--detections", "--output", "--report", "--images"]),
        ("evaluate", ["--model", "--examples", "--output", "--baseline"]),
        ("predict", ["--model", "--images", "--output", "--ground-truth", "--draw"]),
        ("compare", ["--ground-truth", "--images", "--output"]),
    ],
)
def test_other_paths_are_refused_by_name(
    command: str, flags: list[str], path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for wrong in flags:
        given = [part for flag in flags for part in (flag, path if flag == wrong else "x")]
        assert call(command, *(["a", "b"] if command == "compare" else []), *given) == 2
        assert f"{wrong} {path}: " in capfd.readouterr().err


@pytest.mark.parametrize("path", INVALID)
def test_other_paths_of_a_comparison_are_refused_by_name(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("compare", path, "b") == 2
    assert call("compare", "a", path) == 2
    errors = capfd.readouterr().err
    assert f"A {path}: " in errors
    assert f"B {path}: " in errors
