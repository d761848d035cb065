"""The engine's form of `Params`."""

from typing import Any

import hotcoco

from detection.coco.params import Params


def engine_parameters(params: Params) -> Any:
    """`hotcoco.Params` of the params, for all images and categories."""
    parameters = hotcoco.Params(params.iou_type)
    parameters.max_dets = list(params.max_dets)
    parameters.use_cats = params.use_cats
    parameters.iou_thrs = list(params.iou_thresholds)
    parameters.area_rng = [list(limits) for limits in params.area_ranges.values()]
    parameters.area_rng_lbl = list(params.area_ranges)
    parameters.kpt_oks_sigmas = list(params.oks_sigmas)
    return parameters
