"""Analyses made by hand, of any size, for the tests of the pages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from detection.analysis.analysis_file import (
    ERROR_TYPES,
    Analysis,
    Bin,
    Boundaries,
    Box,
    Calibration,
    Category,
    Confusion,
    ErrorType,
    ImageResult,
    ImageSample,
    Interval,
    LabelError,
    MaskMatch,
    MaskOverlap,
    OperatingPoint,
    SizeBucket,
)
from detection.reports.evaluation.pictures import PictureSource

RECALL = [round(step / 100, 2) for step in range(101)]
NAMES = ("apple", "Bear", "cat", "dog", "emu", "frog", "goat")
WIDTH, HEIGHT = 640, 480


def category(number: int, name: str, **fields: Any) -> Category:
    """Category `number`, whose AP is number / 10; the last metrics are undefined."""
    ap = number / 10
    given: dict[str, Any] = {
        "id": number,
        "name": name,
        "metrics": {"AP": ap, "AP50": min(ap + 0.1, 1.0), "AP75": ap, "APs": -1.0, "AR100": ap},
        "baseline_metrics": {"AP": ap + (0.05 if number % 2 else -0.05)},
        "ground_truth": 10 * number,
        "images": 5 * number,
        "detections": 1000 + number,
        "best": OperatingPoint(0.4, 0.8, 0.6, 0.685),
        "precision": np.linspace(1.0, ap, 101).round(3).tolist(),
        "calibration_error": 0.05 * number,
        "errors": {name: number + at for at, name in enumerate(ERROR_TYPES)},
        "tp_by_score": by_score({40: 3 * number, 80: 4 * number}),
        "fp_by_score": by_score({10: 900, 40: number, 90: 1}),
    }
    return Category(**(given | fields))


def by_score(counts: dict[int, int]) -> list[int]:
    """Numbers of detections in the 101 bins of scores, from those by bin."""
    return [counts.get(step, 0) for step in range(101)]


def boxes(count: int, statuses: Sequence[str], *, categories: int, scored: bool) -> list[Box]:
    """Boxes in rows over the image; the first reaches beyond its lower right corner."""
    rng = np.random.default_rng(count)
    made = []
    for index in range(count):
        x, y, w, h = (rng.random(4) * [WIDTH - 60, HEIGHT - 60, 200, 160] + [0, 0, 10, 10]).round(1).tolist()
        score = round(float(rng.uniform(0.3, 1.0)), 3) if scored else None
        box = [WIDTH - 50.0, HEIGHT - 50.0, 90.0, 90.0] if index == 0 else [x, y, w, h]
        made.append(Box(1 + index % categories, box, score, statuses[index % len(statuses)]))
    return made


def image_result(image_id: int, *, categories: int = len(NAMES), objects: int = 4, detections: int = 9) -> ImageResult:
    return ImageResult(
        image_id=image_id,
        file_name=f"{image_id:012d}.jpg",
        width=WIDTH,
        height=HEIGHT,
        tp=detections // 2,
        fp=detections - detections // 2,
        fn=objects // 2,
        ground_truth=boxes(objects, ("matched", "Miss", "crowd"), categories=categories, scored=False),
        detections=boxes(detections, ("TP", *list(ERROR_TYPES)[:5], "ignored"), categories=categories, scored=True),
    )


def label_errors(count: int) -> list[LabelError]:
    return [
        LabelError(
            "class" if number % 2 else "missing",
            500 + number,
            f"label{number}.jpg",
            [20.0 + number, 30.0, 60.0, 40.0],
            0.99 - number / 100,
            1 + number % 3,
            4 if number % 2 else None,
        )
        for number in range(count)
    ]


def boundaries(**fields: Any) -> Boundaries:
    """Boundaries of masks, without the masks themselves."""
    overlap = MaskOverlap(200, 0.8, 0.6, 50)
    given: dict[str, Any] = {
        "areas": {"all": overlap, "small": MaskOverlap(0, None, None, 0), "large": overlap},
        "categories": {2: MaskOverlap(150, 0.81, 0.65, 30), 7: MaskOverlap(50, 0.77, 0.45, 20)},
        "worst": [
            MaskMatch(
                image_id=700 + number,
                file_name=f"mask{number}.jpg",
                mask_iou=0.8,
                boundary_iou=0.1 + number / 10,
                ground_truth=Box(2, [130.0, 140.0, 100.0, 90.0], None, "matched"),
                detection=Box(2, [120.0, 150.0, 100.0, 100.0], 0.75, "TP"),
            )
            for number in range(2)
        ],
    }
    return Boundaries(**(given | fields))


def calibration() -> Calibration:
    bins = [Bin(low / 10, low / 10 + 0.1, 100 - 9 * low, low / 10 + 0.05, low / 10 + 0.01) for low in range(10)]
    return Calibration(0.04, 0.07, [*bins[:5], Bin(0.5, 0.6, 0, 0.0, 0.0), *bins[6:]])


def confusion(categories: Sequence[Category]) -> Confusion:
    size = len(categories) + 1
    matrix = np.random.default_rng(size).poisson(1.0, (size, size)) + 30 * np.eye(size, dtype=int)
    matrix[-1, -1] = 0
    return Confusion([category.id for category in categories], matrix.tolist(), 0.5, 0.3)


def analysis(**fields: Any) -> Analysis:
    """An analysis of boxes with everything in it, compared with a baseline."""
    categories = fields.pop("categories", [category(number, name) for number, name in enumerate(NAMES, 1)])
    names = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
    metrics = {name: 0.4 + index / 100 for index, name in enumerate(names)}
    given: dict[str, Any] = {
        "iou_type": "bbox",
        "sample": ImageSample(images=5000, of=5000, seed=0),
        "metrics": metrics | {"APs": -1.0},
        "baseline_metrics": {name: value - 0.02 for name, value in metrics.items()} | {"AP50": 0.5, "ARs": -1.0},
        "confidence": 0.95,
        "replicates": 200,
        "intervals": {"AP": Interval(0.4, 0.389, 0.412, 1.0), "AP50": Interval(0.41, 0.4, 0.42, 1.0)},
        "differences": {
            "AP": Interval(0.02, 0.011, 0.029, 1.0),
            "AP50": Interval(-0.09, -0.1, -0.08, 0.0),
            "AP75": Interval(0.02, -0.004, 0.044, 0.9),
        },
        "iou": 0.5,
        "score": 0.3,
        "categories": categories,
        "recall": RECALL,
        "curves": {
            "0.50": np.linspace(1, 0.5, 101).tolist(),
            "0.75": np.linspace(1, 0.2, 101).tolist(),
            "0.50:0.95": np.linspace(0.9, 0.1, 101).tolist(),
        },
        "confusion": confusion(categories),
        "errors": [ErrorType(name, 100 * at, 0.01 * at) for at, name in enumerate(ERROR_TYPES)],
        "calibration": calibration(),
        "sizes": [
            SizeBucket(0, 32, 120, {"AP": 0.1, "AP50": 0.2, "AR100": 0.2}),
            SizeBucket(32, 96, 0, {"AP": -1.0, "AP50": -1.0, "AR100": -1.0}),
            SizeBucket(96, 0, 300, {"AP": 0.6, "AP50": 0.8, "AR100": 0.7}),
        ],
        "label_errors": label_errors(4),
        "worst": [image_result(number) for number in range(1, 4)],
        "examples": {name: [image_result(number)] for number, name in enumerate(ERROR_TYPES, 3)},
        "losses": {"class": 0.31, "box": 0.0042},
        "operating_point": OperatingPoint(0.41, 0.72, 0.55, 0.624),
    }
    return Analysis(**(given | fields))


def empty_analysis() -> Analysis:
    """No image, no category, no detection."""
    return Analysis(
        iou_type="bbox",
        sample=ImageSample(0, 0, 0),
        metrics={"AP": -1.0},
        baseline_metrics={},
        confidence=0.95,
        replicates=0,
        intervals={},
        differences={},
        iou=0.5,
        score=0.3,
        categories=[],
        recall=RECALL,
        curves={"0.50": [-1.0] * 101},
        confusion=None,
        errors=[],
        calibration=None,
        sizes=[],
        label_errors=[],
        worst=[],
        examples={},
    )


def smooth_pictures(width: int = WIDTH, height: int = HEIGHT) -> PictureSource:
    """Images of soft colours, another for each id."""

    def picture(image_id: int) -> Image.Image:
        colors = np.random.default_rng(image_id).integers(0, 256, (12, 16, 3), np.uint8)
        return Image.fromarray(colors).resize((width, height))

    return picture
