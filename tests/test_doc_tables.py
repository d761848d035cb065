"""The tables on the pages of the families are made from the classes."""

import re
from pathlib import Path

import numpy as np
import pytest

from detection.models.efficientdet.config import EFFICIENTDETS
from detection.models.faster_rcnn.config import FASTER_RCNNS
from detection.models.registry import FAMILIES, build_detector
from detection.models.retinanet.config import RETINANETS
from docs.detectors import PUBLISHED, measured_detectors
from docs.tables import PAGES, README, TABLES, with_tables
from schemas.errors import CocoflowError
from tests.test_docs import all_tables, tables


@pytest.mark.parametrize("path", [README, *PAGES.glob("*.md")], ids=lambda path: path.name)
def test_the_tables_are_those_of_the_classes(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert with_tables(text) == text, "run `make docs`"


def test_every_table_has_a_place_and_every_detector_a_row() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in [README, *PAGES.glob("*.md")])
    configs = [config for family in FAMILIES for config in family.presets.values()]
    of_tests = {type(config).__name__ for config in configs if type(config).__module__.startswith("tests.")}
    placed = set(re.findall("<!-- table: (.+) -->", texts))
    assert placed == {name for name in TABLES if name.split()[0] not in of_tests}
    assert all(f"\n| `{name}` |" in texts for name in (*EFFICIENTDETS, *RETINANETS, *FASTER_RCNNS))


def test_every_detector_was_measured_and_has_a_source_of_its_ap() -> None:
    text = (PAGES / "detectors.md").read_text(encoding="utf-8")
    (rows,) = (rows for header, rows in all_tables("docs/detectors.md") if header[0] == "model.name")
    presets = [preset for family in FAMILIES for preset in family.presets.items()]
    names = {name for name, config in presets if not type(config).__module__.startswith("tests.")}
    assert [row[0] for row in rows] == list(measured_detectors())
    assert names == set(measured_detectors())
    assert all("-" not in row[:5] + row[6:] for row in rows)
    published = {name: f"[{ap}][{source}]" for source, aps in PUBLISHED.items() for name, ap in aps.items()}
    assert {row[0]: row[5] for row in rows if row[5] != "-"} == published
    assert set(PUBLISHED) == set(re.findall(r"^\[(\w+)\]: https://", text, re.MULTILINE))
    # In millions, as google/automl and TPU RetinaNet publish them.
    for name, parameters in {"efficientdet-d7x": 77.0, "efficientdet-lite4": 15.1, "retinanet-r50": 34.0}.items():
        assert measured_detectors()[name]["parameters"] == pytest.approx(1e6 * parameters, rel=0.004)


def test_only_a_marked_table_is_replaced() -> None:
    before = "before\n\n| a |\n|---|\n\n<!-- table: EfficientDetConfig postprocess -->\n"
    made = with_tables(f"{before}| stale |\n|---|\n| row |\n\nafter\n")
    assert made.startswith(f"{before}| key |")
    assert made.endswith("|\n\nafter\n")
    assert "stale" not in made
    with pytest.raises(CocoflowError, match=r"no table 'prices'\. Known tables are EfficientDetConfig presets, "):
        with_tables("<!-- table: prices -->\n")


@pytest.mark.extended  # builds networks of 70 million weights
@pytest.mark.parametrize("name", FASTER_RCNNS)
def test_the_parameter_counts(name: str) -> None:
    rows = tables("docs/mask_rcnn.md")["model.name", "parameters", "that train"]
    listed = {row[0]: row[1:] for row in rows}
    detector = build_detector(name, num_classes=90)
    weights = [variable for variable in detector.variables if "moving_" not in variable.path]
    counts = [sum(int(np.prod(one.shape)) for one in group) for group in (weights, detector.trainable_variables)]
    assert listed[name] == [f"{count:,}" for count in counts]
