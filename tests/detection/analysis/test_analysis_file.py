"""`analysis.json`: a round trip, and what is no such file."""

import json
from pathlib import Path

import pytest

from detection.analysis.analyse import analyse
from detection.analysis.analysis_file import read_analysis, write_analysis
from detection.coco.params import make_params
from schemas.artifacts import ANALYSIS_JSON
from schemas.config.evaluate import AnalysisConfig
from schemas.errors import DataError
from schemas.metrics import METRIC_DEFINITIONS
from tests.detection.coco.generated_cases import generate


@pytest.mark.parametrize("iou_type", METRIC_DEFINITIONS)
def test_round_trip(tmp_path: Path, iou_type: str) -> None:
    ground_truth, detections = generate(1)
    analysis = analyse(
        ground_truth,
        detections,
        params=make_params(iou_type),
        baseline=detections[::2],
        options=AnalysisConfig(replicates=10),
    )
    path = tmp_path / "new folder" / ANALYSIS_JSON
    write_analysis(path, analysis)
    assert read_analysis(path) == analysis
    content = json.loads(path.read_text())
    assert content["sample"] == {"images": 10, "of": 10, "seed": 0}
    assert [file.name for file in path.parent.iterdir()] == [ANALYSIS_JSON]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not an analysis of this version: Invalid JSON: EOF while parsing"),
        ("[]", "not an analysis of this version: Input should be an object"),
        ('{"iou_type": 3}', "not an analysis of this version: iou_type: Input should be a valid string"),
        ("\udcff", "not an analysis of this version: Invalid JSON"),
    ],
)
def test_what_is_no_analysis(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / ANALYSIS_JSON
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=f"{path}: {message}.*Evaluate again"):
        read_analysis(path)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / ANALYSIS_JSON
    write_analysis(path, analyse(*generate(0), params=make_params(), options=AnalysisConfig(replicates=0)))
    content = json.loads(path.read_text())
    del content["sizes"][3]["ground_truth"]
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"sizes\.3\.ground_truth: Field required"):
        read_analysis(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing\.json: cannot read the file: No such file"):
        read_analysis(tmp_path / "nothing.json")
