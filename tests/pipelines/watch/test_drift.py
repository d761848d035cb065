"""Drift of annotations against plain sums: L-infinity and Jensen-Shannon divergence of counted values."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detection.datasets.splits import SplitFiles
from pipelines.watch.drift import CATEGORY, Drift, count_values, distance, drift_reason, measure
from schemas.config.watch import DriftConfig
from schemas.errors import ConfigError

NUMBERS = ("relative box size", "box aspect ratio", "objects per image", "image width", "image height")
EVERY = dict.fromkeys((CATEGORY, *NUMBERS), 0.1)


def write_span(path: Path, *, seed: int, images: int = 60, scale: float = 1.0, shares: Any = (5, 3, 2)) -> SplitFiles:
    """A COCO file with random boxes.

    Args:
        path: of the file.
        seed: of the random numbers.
        images: number of images.
        scale: of the boxes' sides.
        shares: of the categories.
    """
    rng = np.random.default_rng(seed)
    probabilities = np.array(shares) / sum(shares)
    entries: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(images):
        width, height = rng.choice([320, 640, 800]), rng.choice([240, 480])
        entries.append({"id": number, "file_name": f"{number}.jpg", "width": int(width), "height": int(height)})
        for _ in range(rng.poisson(3)):
            sides = rng.uniform(0.05, 0.4, 2) * [width, height] * scale
            annotations.append(
                {
                    "id": len(annotations),
                    "image_id": number,
                    "category_id": int(rng.choice(len(shares), p=probabilities)),
                    "bbox": [0.0, 0.0, *sides.tolist()],
                    "iscrowd": int(rng.random() < 0.1),
                }
            )
    categories = [{"id": at, "name": f"category {at}"} for at in range(len(shares))]
    path.write_text(json.dumps({"images": entries, "annotations": annotations, "categories": categories}))
    return SplitFiles(str(path), str(path.parent))


def plain_values(split: SplitFiles) -> dict[str, Counter[Any]]:
    """What is counted, from the file itself: bins by logarithms instead of searched edges."""
    tree = json.loads(Path(split.annotations).read_text())
    counts: dict[str, Counter[Any]] = {name: Counter() for name in EVERY}
    kept = [one for one in tree["annotations"] if not one["iscrowd"]]
    for image in tree["images"]:
        own = [one for one in kept if one["image_id"] == image["id"]]
        # 0, 1, 2, 3 to 4, 5 to 8, ...
        counts["objects per image"][len(own) if len(own) < 3 else 3 + math.ceil(math.log2(len(own) / 4))] += 1
        counts["image width"][math.floor(4 * math.log2(image["width"]))] += 1
        counts["image height"][math.floor(4 * math.log2(image["height"]))] += 1
        for one in own:
            _, _, width, height = one["bbox"]
            counts[CATEGORY][one["category_id"]] += 1
            counts["box aspect ratio"][max(-9, min(8, math.floor(2 * math.log2(width / height))))] += 1
            relative = math.sqrt(width * height / image["width"] / image["height"])
            counts["relative box size"][max(-17, min(0, math.floor(2 * math.log2(relative))))] += 1
    return counts


def plain_drift(a: Mapping[str, Counter[Any]], b: Mapping[str, Counter[Any]]) -> dict[str, float]:
    drifts = {}
    for name in a:
        keys = sorted(a[name].keys() | b[name].keys())
        p, q = (np.array([one[name][key] for key in keys], float) for one in (a, b))
        p, q = p / p.sum(), q / q.sum()
        if name == CATEGORY:
            drifts[name] = float(np.abs(p - q).max())
            continue
        middle = (p + q) / 2
        kl = [sum(x * math.log2(x / m) for x, m in zip(one, middle, strict=True) if x) for one in (p, q)]
        drifts[name] = sum(kl) / 2
    return drifts


def drift_between(current: SplitFiles, before: SplitFiles) -> dict[str, float | None]:
    counts = count_values(current), count_values(before)
    return {name: distance(name, counts[0][name], counts[1][name]) for name in EVERY}


@pytest.mark.parametrize("change", [{}, {"seed": 2}, {"scale": 2.4}, {"shares": (1, 1, 8)}, {"shares": (5, 3, 2, 9)}])
def test_drift_is_that_of_plain_sums(tmp_path: Path, change: dict[str, Any]) -> None:
    before = write_span(tmp_path / "a.json", seed=1)
    after = write_span(tmp_path / "b.json", **{"seed": 1, **change})
    drifts = drift_between(after, before)
    assert drifts == pytest.approx(plain_drift(plain_values(before), plain_values(after)), abs=1e-9)
    assert any(value is not None and value > 1e-12 for value in drifts.values()) == bool(change)


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"seed": 2}, {"shares": (5, 3, 2, 9)}])
def test_drift_is_that_of_tensorflow_data_validation(tmp_path: Path, change: dict[str, Any]) -> None:
    before = write_span(tmp_path / "a.json", seed=1)
    after = write_span(tmp_path / "b.json", **{"seed": 1, **change})
    assert drift_between(after, before) == pytest.approx(tfdv_drift(after, before), abs=1e-9)


def tfdv_drift(current: SplitFiles, before: SplitFiles) -> dict[str, float]:
    import pandas
    import tensorflow_data_validation as tfdv
    from tensorflow_metadata.proto.v0 import schema_pb2

    statistics = []
    for split in (current, before):
        values = {name: pandas.Series([*Counter(counts).elements()]) for name, counts in count_values(split).items()}
        # All values count, not only the most frequent.
        options = tfdv.StatsOptions(num_rank_histogram_buckets=100)
        statistics.append(tfdv.generate_statistics_from_dataframe(pandas.DataFrame(values), options))
    schema = schema_pb2.Schema()
    for name in EVERY:
        comparator = schema.feature.add(name=name, type=schema_pb2.BYTES).drift_comparator
        (comparator.infinity_norm if name == CATEGORY else comparator.jensen_shannon_divergence).threshold = 0.1
    anomalies = tfdv.validate_statistics(statistics[0], schema, previous_statistics=statistics[1])
    return {info.path.step[0]: info.drift_measurements[0].value for info in anomalies.drift_skew_info}


def test_a_shifted_span_drifts_and_an_equal_one_does_not(tmp_path: Path) -> None:
    """Through the files of the statistics."""
    options = DriftConfig(enabled=True, jensen_shannon_divergence=0.2)
    first, like = (write_span(tmp_path / f"{seed}.json", seed=seed) for seed in (1, 2))
    assert measure(first, options, destination=f"{tmp_path}/1", reference=None) == []
    larger = write_span(tmp_path / "larger.json", seed=3, scale=2.4)
    drifts = measure(larger, options, destination=f"{tmp_path}/3", reference=f"{tmp_path}/1")
    assert [one.feature for one in drifts] == list(EVERY)
    assert [one.feature for one in drifts if one.is_above] == ["relative box size"]
    assert drift_reason(drifts).startswith("drifted: relative box size 0.")
    assert json.loads((tmp_path / "3").read_text()) == count_values(larger)
    unshifted = measure(like, options, destination=f"{tmp_path}/2", reference=f"{tmp_path}/1")
    assert not any(one.is_above for one in unshifted)
    assert drift_reason(unshifted).startswith("no drift: category 0.0")


def test_data_without_objects_has_drifted(tmp_path: Path) -> None:
    with_objects = write_span(tmp_path / "a.json", seed=1)
    tree = json.loads((tmp_path / "a.json").read_text())
    (tmp_path / "b.json").write_text(json.dumps(tree | {"annotations": []}))
    empty = SplitFiles(str(tmp_path / "b.json"), str(tmp_path))
    drifts = drift_between(empty, with_objects)
    assert {name for name in drifts if drifts[name] is not None} == {"objects per image", "image width", "image height"}
    missing = Drift(CATEGORY, drifts[CATEGORY], 0.1)
    assert missing.is_above
    assert str(missing) == "category undefined (above 0.1)"


def test_boxes_that_are_none_are_left_out(tmp_path: Path) -> None:
    write_span(tmp_path / "a.json", seed=1)
    tree = json.loads((tmp_path / "a.json").read_text())
    annotations = [{"id": 1, "image_id": 0, "category_id": 1, "bbox": box} for box in ([1, 2], "x", [0, 0, 0, 5], None)]
    for entry, number in zip(annotations, range(4), strict=True):
        entry["id"] = number
    (tmp_path / "b.json").write_text(json.dumps(tree | {"annotations": annotations}))
    counts = count_values(SplitFiles(str(tmp_path / "b.json"), str(tmp_path)))
    assert counts[CATEGORY] == {"category 1": 1}, "an object without width"
    assert counts["box aspect ratio"] == counts["relative box size"] == {}


def test_a_part_of_a_file_is_measured_as_it_is_trained_on(tmp_path: Path) -> None:
    whole = write_span(tmp_path / "a.json", seed=1)
    part = SplitFiles(whole.annotations, whole.images, hash_range=(0.0, 0.5), every=2)
    counted = sum(count_values(part)["objects per image"].values())
    images = json.loads(Path(whole.annotations).read_text())["images"]
    held = [image for image in images if part.holds(image)]
    assert counted == len(held[::2])
    assert 0 < counted < 60


def test_tfrecords_have_no_statistics(tmp_path: Path) -> None:
    records = SplitFiles(f"{tmp_path}/*.tfrecord", None)
    with pytest.raises(ConfigError, match=r"watch\.drift needs COCO annotation files, and the data has TFRecords"):
        measure(records, DriftConfig(enabled=True), destination=f"{tmp_path}/x.json", reference=None)
