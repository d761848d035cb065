"""Boxes of COCO files as corners or centers: found out, said, and converted on demand."""

import json
from pathlib import Path
from typing import Any

import pytest

import pipeline_runner
from tests.components.coco_example_gen.mutations import base_tree, write_images


def _box(form: str, box: list[float]) -> list[float]:
    x, y, width, height = box
    corners = [x, y, x + width, y + height]
    return corners if form == "corners" else [x + width / 2, y + height / 2, width, height]


def _write(root: Path, form: str) -> Path:
    for split in ("train", "val"):
        tree = base_tree()
        write_images(root / split, tree)
        for number, annotation in enumerate(tree["annotations"]):
            for key in ("segmentation", "area", "keypoints", "num_keypoints"):
                annotation.pop(key, None)
            if number % 2:  # objects lie at the right border, too
                image = next(one for one in tree["images"] if one["id"] == annotation["image_id"])
                annotation["bbox"][0] = image["width"] - annotation["bbox"][2]
            if form:
                annotation["bbox"] = _box(form, annotation["bbox"])
        (root / "annotations").mkdir(exist_ok=True)
        (root / f"annotations/instances_{split}.json").write_text(json.dumps(tree))
    return root


def _call(data: Path, *more: str, capfd: Any) -> tuple[int, str]:
    code = pipeline_runner.main(["check-data", "--data", str(data), *more])
    return code, " ".join(capfd.readouterr().out.split())


@pytest.mark.parametrize("form", ["corners", "centers"])
def test_a_file_of_another_form_stops_and_says_which(
    form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = _write(tmp_path / "data", form)
    code, said = _call(data, capfd=capfd)
    assert code == 1
    assert said.startswith("No, you cannot train on this yet")
    assert f"--set data.coco_boxes={form}, or keep them with data.coco_boxes=xywh" in said
    for word in ("fix", "drop"):
        code, said = _call(data, "--set", f"data.on_fault={word}", capfd=capfd)
        assert code == 3
        assert f"as {'corners' if form == 'corners' else 'center'} " in said
        assert "box_form (2 issues, data.on_fault: fix)" in said
        assert "box_outside" not in said
    code, said = _call(data, "--set", f"data.coco_boxes={form}", capfd=capfd)
    assert "box_form" not in said
    assert "box_outside" not in said
    assert code in (0, 3)
    _, said = _call(data, "--set", "data.coco_boxes=xywh", "--set", "data.on_fault=fix", capfd=capfd)
    assert "box_form" not in said
    assert "box_outside" in said


def test_converted_boxes_are_those_of_coco(tmp_path: Path) -> None:
    expected, found = tmp_path / "expected.json", tmp_path / "found.json"
    for form, out in (("", expected), ("corners", found)):
        data = _write(tmp_path / f"data{form}", form)
        more = ["--set", f"data.coco_boxes={form}"] if form else []
        examples = tmp_path / f"examples{form}"
        assert pipeline_runner.main(["to-examples", "--data", str(data), "--output", str(examples), *more]) == 0
        assert (
            pipeline_runner.main(["to-coco", "--examples", str(examples), "--output", str(out), "--split", "train"])
            == 0
        )
    boxes = [[one["bbox"] for one in json.loads(path.read_text())["annotations"]] for path in (expected, found)]
    assert boxes[0] == boxes[1]


def test_a_few_boxes_beyond_their_images_are_not_another_form(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = _write(tmp_path / "data", "")
    path = data / "annotations/instances_train.json"
    tree = json.loads(path.read_text())
    for annotation in tree["annotations"][::4]:
        annotation["bbox"][2] += 1000
    path.write_text(json.dumps(tree))
    _, said = _call(data, capfd=capfd)
    assert "box_outside" in said
    assert "coco_boxes" not in said
