"""Rows to a results file and back."""

import json
from pathlib import Path

import numpy as np
import pytest

from detection.coco.io.results import write_results


def test_every_bit_survives(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((50, 7))
    rows[:, 0], rows[:, 6] = np.arange(50), 2**40
    write_results(tmp_path / "found.json", rows)
    results = json.loads((tmp_path / "found.json").read_text())
    back = [[r["image_id"], *r["bbox"], r["score"], r["category_id"]] for r in results]
    np.testing.assert_array_equal(np.array(back), rows)
    assert all(type(r["image_id"]) is type(r["category_id"]) is int for r in results)


def test_no_rows(tmp_path: Path) -> None:
    write_results(tmp_path / "found.json", np.zeros((0, 7)))
    assert json.loads((tmp_path / "found.json").read_text()) == []


def test_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Out of range float values"):
        write_results(tmp_path / "found.json", np.full((1, 7), 1.0) * [1, np.nan, 1, 1, 1, 1, 1])
