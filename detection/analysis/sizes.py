"""Figures by the size of the objects, in finer steps than COCO's three."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from detection.analysis.categories import category_columns
from detection.analysis.findings import SizeBucket
from detection.analysis.instances import Found, Objects
from detection.coco.engine import MatchingEngine
from detection.coco.metrics import metric_value
from detection.coco.params import Params

_ROOTS = (0.0, 16.0, 32.0, 64.0, 96.0, 128.0, 256.0, 512.0)  # pixels


def size_buckets(objects: Objects, found: Found, params: Params) -> list[SizeBucket]:
    """The figures of each bucket of the roots of the objects' areas."""
    bounds = list(pairwise([root**2 for root in _ROOTS] + [np.inf]))
    # The ends of COCO's ranges belong to them; the upper one of a bucket does not.
    ranges = {f"{low:g}": (low, float(np.nextafter(high, 0.0))) for low, high in bounds}
    figures = [figure for figure in category_columns(params) if figure.area == "all" and figure.iou in (None, 0.5)]
    params = replace(params, area_ranges=ranges, max_dets=params.max_dets[-1:])
    engine = MatchingEngine(objects.categories, params)
    engine.add(objects.sound, objects.annotations, found.entries, where="ground truth")
    arrays = engine.arrays()
    areas = objects.areas[~objects.ignored]
    return [
        SizeBucket(
            low=float(np.sqrt(low)),
            high=float(np.sqrt(high)) if np.isfinite(high) else 0.0,
            objects=int(((areas >= low) & (areas < high)).sum()),
            figures={
                figure.name: metric_value(
                    replace(figure, area=name, max_dets=-1),
                    arrays.precision,
                    arrays.recall,
                    iou_thresholds=params.iou_thresholds,
                    area_names=list(params.area_ranges),
                )
                for figure in figures
            },
        )
        for (low, high), name in zip(bounds, ranges, strict=True)
    ]
