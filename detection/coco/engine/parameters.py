"""The engine's form of `Settings`."""

from typing import Any

import hotcoco

from detection.coco.params import Settings


def engine_parameters(settings: Settings) -> Any:
    """`hotcoco.Params` of the settings, for all images and categories."""
    parameters = hotcoco.Params(settings.iou_type)
    parameters.max_dets = list(settings.max_dets)
    parameters.use_cats = settings.use_cats
    parameters.iou_thrs = list(settings.iou_thresholds)
    parameters.area_rng = [list(limits) for limits in settings.area_ranges.values()]
    parameters.area_rng_lbl = list(settings.area_ranges)
    parameters.kpt_oks_sigmas = list(settings.oks_sigmas)
    return parameters
