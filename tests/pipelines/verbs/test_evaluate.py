"""`evaluate` as a user calls it."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from pipelines.verbs import evaluate
from schemas.errors import DataError
from tests.detection.coco.generated_cases import generate, pycocotools_eval


def call(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    return evaluate.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.mark.parametrize("iou_type", ["bbox", "segm", "keypoints"])
def test_table_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], iou_type: str) -> None:
    truth, detections = generate(11)
    (tmp_path / "gt.json").write_text(json.dumps(truth))
    (tmp_path / "dt.json").write_text(json.dumps(detections))
    out = tmp_path / "metrics.json"
    files = ("--ground-truth", tmp_path / "gt.json", "--detections", tmp_path / "dt.json")
    assert call(*files, "--iou-type", iou_type, "--output", out) == 0
    content = json.loads(out.read_text())
    reference = pycocotools_eval(truth, detections, iou_type)
    np.testing.assert_allclose(content["stats"], reference.stats, rtol=0, atol=1e-9)
    assert content["iou_type"] == iou_type
    printed = capsys.readouterr().out
    assert f"COCO metrics, {iou_type}" in printed
    assert f"{reference.stats[0]:.4f}" in printed


def test_nothing_is_written_for_a_fault(tmp_path: Path) -> None:
    out = tmp_path / "metrics.json"
    with pytest.raises(DataError, match=r"gt.json: cannot read the file"):
        call("--ground-truth", tmp_path / "gt.json", "--detections", tmp_path / "dt.json", "--output", out)
    assert not out.exists()
