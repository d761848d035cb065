"""`predict` as a user calls it."""

import argparse
import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from detection.coco import evaluate
from detection.inference import predict as prediction
from detection.inference.formats.saved_model import SavedModelDetector
from detection.inference.score_thresholds import SCORE_THRESHOLDS_FILE, CategoryThreshold, ScoreThresholds, Threshold
from detection.inference.test_time_augmentation import AugmentedDetector, View
from detection.storage.local import LocalFiles
from pipeline_runner import main
from pipelines.commands import predict
from schemas.errors import ConfigError, DataError
from tests.detection.fake_detector import save_fake_detector, write_images


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_fake_detector(tmp_path_factory.mktemp("model"))


def call(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    predict.add_arguments(parser)
    return predict.run(parser.parse_args([str(argument) for argument in arguments]))


def write_ground_truth(path: Path, images: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"images": images}))
    return path


def test_ids_by_sorted_path_and_the_list_beside(tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path / "in" / "b", 2)
    write_images(tmp_path / "in" / "a", 3)
    (tmp_path / "in" / "notes.txt").write_text("no image")
    out = tmp_path / "out" / "detections.json"
    assert call("--model", model, "--images", tmp_path / "in", "--output", out, "--batch-size", "2") == 0
    images = json.loads((tmp_path / "out" / "detections_images.json").read_text())["images"]
    assert [image["id"] for image in images] == [1, 2, 3, 4, 5]
    assert [Path(image["file_name"]).parent.name for image in images] == ["a", "a", "a", "b", "b"]
    assert (images[1]["height"], images[1]["width"]) == (23, 41)
    results = json.loads(out.read_text())
    assert {result["image_id"] for result in results} <= {1, 2, 3, 4, 5}
    assert set(results[0]) == {"image_id", "category_id", "bbox", "score"}
    assert isinstance(results[0]["category_id"], int)
    assert capfd.readouterr().out.splitlines() == [str(out), str(tmp_path / "out" / "detections_images.json")]


def test_ids_of_the_ground_truth(
    tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = write_images(tmp_path / "in" / "val", 4)
    listed = [{**entry, "file_name": f"val/{entry['file_name']}"} for entry in entries[:3]]
    absent = {"id": 1, "file_name": "val/absent.png"}
    ground_truth = write_ground_truth(tmp_path / "gt.json", [*listed, absent])
    out = tmp_path / "detections.json"
    call("--model", model, "--images", tmp_path / "in", "--ground-truth", ground_truth, "--output", out)
    ids = [result["image_id"] for result in json.loads(out.read_text())]
    assert set(ids) <= {500, 493, 486}
    assert ids == sorted(ids)
    assert not (tmp_path / "detections_images.json").exists()
    notes = capfd.readouterr().err
    assert "skipping 1 images that are not in" in notes
    assert "1 images of" in notes
    assert "category ids" not in notes
    categories = [{"id": 1, "name": "egg"}, {"id": 2, "name": "cup"}]
    monkeypatch.setattr(prediction, "read_model_categories", lambda _: tuple(categories))
    tree = {"images": [*listed, absent], "categories": [{"id": 2, "name": "egg"}, {"id": 1, "name": "cup"}]}
    ground_truth.write_text(json.dumps(tree))
    call("--model", model, "--images", tmp_path / "in", "--ground-truth", ground_truth, "--output", out)
    assert "category ids are the model's, and other than in" in capfd.readouterr().err


def test_detections_of_numbered_images_are_evaluated_by_file_name(
    tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    # The ground truth's ids are 1, 2, ... too, in another order than the paths.
    entries = [
        {**entry, "id": number} for number, entry in enumerate(reversed(write_images(tmp_path / "in" / "val", 4)), 1)
    ]
    folder, out = tmp_path / "in", tmp_path / "own.json"
    (folder / "unlisted.png").write_bytes((folder / "val" / entries[0]["file_name"]).read_bytes())
    ground_truth = write_ground_truth(tmp_path / "gt.json", entries)
    call("--model", model, "--images", folder, "--ground-truth", ground_truth, "--output", out)
    results = json.loads(out.read_text())
    best = max((result for result in results if result["image_id"] == 1), key=lambda result: result["score"])
    annotation = {"id": 1, "iscrowd": 0, "area": 100.0, **best}
    categories = [{"id": one, "name": str(one)} for one in sorted({result["category_id"] for result in results})]
    tree = {"images": entries, "annotations": [annotation], "categories": categories}
    ground_truth.write_text(json.dumps(tree))

    numbered = tmp_path / "numbered.json"
    call("--model", model, "--images", folder, "--output", numbered)
    capfd.readouterr()
    measured = {}
    for path in (out, numbered):
        flags = ["--ground-truth", str(ground_truth), "--detections", str(path)]
        assert main(["evaluate", *flags, "--output", str(tmp_path / f"metrics_{path.name}")]) == 0
        measured[path] = json.loads((tmp_path / f"metrics_{path.name}").read_text())
    assert measured[out] == measured[numbered]
    assert measured[out]["stats"][0] > 0.5
    assert "4 of 5 images are in" in caplog.text
    changes = ["compare", str(out), str(numbered), "--ground-truth", str(ground_truth)]
    assert main(changes) == 0
    assert "+0.0000" not in capfd.readouterr().out
    # A list that an earlier call left is replaced by one of the new detections.
    call("--model", model, "--images", folder, "--ground-truth", ground_truth, "--output", numbered)
    assert evaluate(ground_truth, numbered).stats.tolist() == measured[out]["stats"]


def test_images_without_any_detection_give_an_empty_list(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detection.inference.formats import saved_model as inference

    empty = inference.Results(inference.np.zeros((0, 7)))
    monkeypatch.setattr(inference, "results_from_outputs", lambda outputs, images, **_: [empty for _ in images])
    write_images(tmp_path / "in", 1)
    call("--model", model, "--images", tmp_path / "in", "--output", tmp_path / "detections.json")
    assert json.loads((tmp_path / "detections.json").read_text()) == []


def test_a_batch_is_no_larger_than_needed(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    opened = prediction.open_detector

    def open_small(path: str, *, batch_size: int) -> Any:
        sizes.append(batch_size)
        return opened(path, batch_size=8)

    monkeypatch.setattr(prediction, "open_detector", open_small)
    write_images(tmp_path / "in", 10)
    for given in ("1000000000", "9"):
        call("--model", model, "--images", tmp_path / "in", "--output", tmp_path / "d.json", "--batch-size", given)
    call(
        "--model",
        model,
        "--images",
        next((tmp_path / "in").iterdir()),
        "--output",
        tmp_path / "d.json",
        "--batch-size",
        "1000000000",
    )
    assert sizes == [10, 9, 8]


def test_errors(tmp_path: Path, model: Path) -> None:
    entries = write_images(tmp_path / "in", 1)
    given = ("--model", model, "--output", tmp_path / "detections.json")
    with pytest.raises(ConfigError, match=r"--batch-size 0"):
        call(*given, "--images", tmp_path / "in", "--batch-size", "0")
    with pytest.raises(DataError, match=r"absent: no such file or folder"):
        call(*given, "--images", tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no image in .*empty; accepted: \.bmp"):
        call(*given, "--images", tmp_path / "empty")
    other = write_ground_truth(tmp_path / "other.json", [{"id": 1, "file_name": "other.png"}])
    with pytest.raises(DataError, match=r"other.json: has none of the 1 images"):
        call(*given, "--images", tmp_path / "in", "--ground-truth", other)
    nameless = write_ground_truth(tmp_path / "nameless.json", [{"id": 1}])
    with pytest.raises(DataError, match=r"nameless.json: missing file_name: image 1"):
        call(*given, "--images", tmp_path / "in", "--ground-truth", nameless)
    (tmp_path / "list.json").write_text("[]")
    with pytest.raises(DataError, match=r"list.json: no list `images`"):
        call(*given, "--images", tmp_path / "in", "--ground-truth", tmp_path / "list.json")
    write_images(tmp_path / "again", 1)
    ground_truth = write_ground_truth(tmp_path / "gt.json", entries)
    with pytest.raises(DataError, match=r"are both image 500 of .*gt.json"):
        call(*given, "--images", tmp_path / "in", tmp_path / "again", "--ground-truth", ground_truth)
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"no image can be read: .*broken.png: not a readable image"):
        call(*given, "--images", tmp_path / "broken.png")
    assert not (tmp_path / "detections.json").exists()


def test_one_broken_photograph_loses_no_other(tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path / "in", 5)
    (tmp_path / "in/z.jpg").write_bytes(b"\xff\xd8\xff cut off")
    for hidden in ("in/._000.png", "in/.thumbnails/a.png", "in/__MACOSX/a.png"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_bytes(b"no image")
    given = ("--model", model, "--images", tmp_path / "in", "--output", tmp_path / "f.json")
    assert call(*given, "--draw", tmp_path / "drawn") == 3
    assert len(json.loads((tmp_path / "f_images.json").read_text())["images"]) == 5
    assert len(list((tmp_path / "drawn").iterdir())) == 5
    told = capfd.readouterr().err
    assert "left out: " in told
    assert "z.jpg: not a readable image" in told
    assert "MACOSX" not in told


def test_images_are_known_by_their_bytes_where_there_is_no_suffix(
    tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    picture = Image.new("RGB", (20, 10))
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.jpg", "b.jfif", "e.jpe", "f", "more.PNG"):
        picture.save(folder / name, "PNG" if name == "more.PNG" else "JPEG")
    for name in ("c.webp", "d.tif", "g.avif"):
        (folder / name).write_bytes(b"of another format")
    (folder / "README").write_text("no image")
    assert call("--model", model, "--images", folder, "--output", tmp_path / "f.json") == 0
    listed = json.loads((tmp_path / "f_images.json").read_text())["images"]
    assert [Path(image["file_name"]).name for image in listed] == ["a.jpg", "b.jfif", "e.jpe", "f", "more.PNG"]
    told = " ".join(capfd.readouterr().err.split())
    assert "left out: 1 .webp, 1 .tif, 1 .avif, which TensorFlow does not decode: c.webp" in told
    for name in ("a.jpg", "b.jfif", "e.jpe", "f", "more.PNG"):
        (folder / name).unlink()
    with pytest.raises(DataError, match=r"no image in .*; there are 1 \.webp, 1 \.tif, 1 \.avif; accepted"):
        call("--model", model, "--images", folder, "--output", tmp_path / "f.json")


@pytest.mark.parametrize("writes", range(4))
def test_a_kill_leaves_no_old_detections_beside_a_new_list(
    tmp_path: Path, model: Path, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, listed = tmp_path / "f.json", tmp_path / "f_images.json"
    states = []
    for name in ("old", "new"):
        write_images(tmp_path / name, 2 if name == "old" else 3)
        assert call("--model", model, "--images", tmp_path / name, "--output", output) == 0
        states.append((listed.read_text(), output.read_text()))
        if name == "old":
            kept = states[0]
    listed.write_text(kept[0])
    output.write_text(kept[1])
    left = iter(range(writes))

    def counted(original: Any) -> Any:
        def act(*arguments: Any, **keywords: Any) -> Any:
            if next(left, None) is None:
                raise KeyboardInterrupt
            return original(*arguments, **keywords)

        return act

    monkeypatch.setattr(prediction, "remove_file", counted(prediction.remove_file))
    monkeypatch.setattr(LocalFiles, "move_file", counted(LocalFiles.move_file))
    with contextlib.suppress(KeyboardInterrupt):
        call("--model", model, "--images", tmp_path / "new", "--output", output)
    found = (listed.read_text(), output.read_text() if output.exists() else None)
    assert found == [states[0], (states[0][0], None), (states[1][0], None), states[1]][writes]


def test_a_name_that_is_not_utf8_is_refused_before_detecting(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "images", 2)
    name = tmp_path / "images" / os.fsdecode(b"caf\xe9.png")
    next((tmp_path / "images").iterdir()).rename(name)
    monkeypatch.setattr(prediction, "open_detector", None)  # not even loaded
    with pytest.raises(DataError, match=r"images/caf\\udce9\.png': the file name is not UTF-8"):
        call("--model", model, "--images", tmp_path / "images", "--output", tmp_path / "f.json")
    assert not (tmp_path / "f.json").exists()


def test_a_name_that_is_not_utf8_may_lie_beside_those_of_the_ground_truth(tmp_path: Path, model: Path) -> None:
    [entry, _] = write_images(tmp_path / "images", 2)
    (tmp_path / "images" / os.fsdecode(b"caf\xe9.png")).write_bytes(b"")
    ground_truth = write_ground_truth(tmp_path / "gt.json", [entry])
    given = ("--images", tmp_path / "images", "--ground-truth", ground_truth)
    assert call("--model", model, *given, "--output", tmp_path / "f.json") == 0


def test_two_images_of_the_ground_truth_with_one_name_are_told_apart(tmp_path: Path, model: Path) -> None:
    entries = write_images(tmp_path / "images", 2)
    ground_truth = write_ground_truth(tmp_path / "gt.json", [*entries, entries[0] | {"id": 9}])
    given = ("--model", model, "--ground-truth", ground_truth, "--output", tmp_path / "f.json")
    with pytest.raises(
        DataError, match=r"gt\.json: images 500 and 9 have the same file_name '.*', so .* may be either"
    ):
        call(*given, "--images", tmp_path / "images")
    others = [path for path in (tmp_path / "images").iterdir() if path.name != entries[0]["file_name"]]
    assert call(*given, "--images", *others) == 0


def test_names_are_shown_without_control_characters(
    tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "in", 2)
    bad = tmp_path / "in" / "a\x1b[2J\nerror: [red]b.png"
    bad.write_bytes(b"no image")
    arguments = ["predict", "--model", model, "--images", tmp_path / "in", "--output", tmp_path / "f\x1b.json"]
    assert main([str(argument) for argument in arguments]) == 3
    told = capfd.readouterr().err
    assert "a\\x1b[2J\\nerror: [red]b.png: not a readable image" in told
    assert len(told.splitlines()) <= 3  # the progress leaves an empty one
    bad.unlink()
    assert main([str(argument) for argument in arguments]) == 0
    assert "f\\x1b.json" in capfd.readouterr().out


def test_advice_is_about_the_file_as_there_is_no_configuration(tmp_path: Path, model: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg", format="TIFF")
    with pytest.raises(DataError, match=r"TensorFlow does not decode TIFF\. Convert the file to JPEG or PNG\.$"):
        call("--model", model, "--images", tmp_path / "a.jpg", "--output", tmp_path / "f.json")


def test_views_are_fused(tmp_path: Path, model: Path) -> None:
    write_images(tmp_path / "in", 3)
    given = ("--model", model, "--images", tmp_path / "in", "--output")
    assert call(*given, tmp_path / "plain.json") == 0
    assert call(*given, tmp_path / "views.json", "--tta", "flip,1.5", "--batch-size", "2") == 0
    images = [prediction.load_image(number, str(path)) for number, path in listed(tmp_path / "in")]
    detector = SavedModelDetector(folder=model, batch_size=4)
    expected = AugmentedDetector(
        detector, [View(scale, flip) for scale in (1.0, 1.5) for flip in (False, True)], batch_size=4
    )
    results = [one for result in expected.detect(images) for one in result.coco_results()]
    assert json.loads((tmp_path / "views.json").read_text()) == results
    assert json.loads((tmp_path / "plain.json").read_text()) != results


def listed(folder: Path) -> list[tuple[int, Path]]:
    return list(enumerate(sorted(folder.iterdir()), 1))


@pytest.mark.parametrize("text", ["flop", "", "0.8,", "3", "flip 0.8"])
def test_views_without_a_meaning(tmp_path: Path, model: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"--tta .*: give `flip`, scales from 0.5 to 2, or both"):
        call("--model", model, "--images", tmp_path, "--output", tmp_path / "o.json", "--tta", text)


def test_score_thresholds_of_the_model_leave_detections_out(tmp_path: Path, model: Path) -> None:
    pushed = Path(shutil.copytree(model, tmp_path / "pushed"))
    best = CategoryThreshold(0.5, 1.0, 1.0, 1.0, id=7, name="cat")
    thresholds = ScoreThresholds("bbox", 0.5, 5, Threshold(), [best])
    (pushed / SCORE_THRESHOLDS_FILE).parent.mkdir()
    (pushed / SCORE_THRESHOLDS_FILE).write_bytes(thresholds.as_bytes())
    write_images(tmp_path / "in", 6)
    out = {}
    for flags in ((), ("--score-thresholds", "best-f1")):
        call("--model", pushed, "--images", tmp_path / "in", "--output", tmp_path / "detections.json", *flags)
        out[flags] = json.loads((tmp_path / "detections.json").read_text())
    every, kept = out.values()
    assert kept == [one for one in every if one["category_id"] != 7 or one["score"] >= 0.5]
    assert 0 < len(kept) < len(every)


def test_a_model_without_score_thresholds_is_refused_with_them(tmp_path: Path, model: Path) -> None:
    write_images(tmp_path / "in", 1)
    flags = ("--images", tmp_path / "in", "--output", tmp_path / "out.json", "--score-thresholds", "best-f1")
    with pytest.raises(DataError, match="this model has no score thresholds"):
        call("--model", model, *flags)
    with pytest.raises(ConfigError, match="--score-thresholds and --tta are exclusive"):
        call("--model", model, *flags, "--tta", "flip")
    assert not (tmp_path / "out.json").exists()


def test_pictures_alone_need_no_results_file(tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path / "in", 2)
    assert call("--model", model, "--images", tmp_path / "in", "--draw", tmp_path / "drawn", "--score", "0") == 0
    assert capfd.readouterr().out.splitlines() == [str(tmp_path / "drawn")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["drawn", "in"]
    with pytest.raises(ConfigError, match="predict needs --draw, --output or both"):
        call("--model", model, "--images", tmp_path / "in")


@pytest.mark.parametrize("flag", ["--output", "--draw"])
def test_a_place_that_cannot_be_written_is_refused_before_the_model_is_loaded(flag: str, tmp_path: Path) -> None:
    write_images(tmp_path / "in", 1)
    (tmp_path / "file").touch()
    (tmp_path / "model").mkdir()  # which would be refused, too
    with pytest.raises(DataError, match=rf"{flag} .*file/result.png: cannot write: .*/file is a file"):
        call("--model", tmp_path / "model", "--images", tmp_path / "in", flag, tmp_path / "file" / "result.png")
