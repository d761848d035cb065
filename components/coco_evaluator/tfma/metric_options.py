"""Options of our metrics in an `EvalConfig`: the JSON of `MetricConfig.config`."""

import json
from typing import Any

from pydantic import ValidationError

from detection.coco.params import Params, make_params
from schemas.config.section import Section
from schemas.errors import ConfigError
from schemas.metrics import IouType

METRICS_CLASS = "CocoMetrics"
METRICS_MODULE = "components.coco_evaluator.tfma_metrics"


class MetricOptions(Section):
    """Options of `CocoMetrics`.

    categories: ids of the data set's categories, or COCO's `categories` entries, as
        LVIS needs them.  The stock Evaluator needs them; the `CocoEvaluator` has them
        from the data set.

    The others are those of `detection.coco.params.make_params`.
    """

    iou_type: IouType = "bbox"
    max_dets: tuple[int, ...] | None = None
    use_cats: bool = True
    iou_thresholds: tuple[float, ...] | None = None
    area_ranges: dict[str, tuple[float, float]] | None = None
    oks_sigmas: tuple[float, ...] | None = None
    lvis: bool = False
    categories: tuple[int | dict[str, Any], ...] = ()

    @property
    def named_iou_types(self) -> list[IouType]:
        """The IoU type, if the options name it; the `CocoEvaluator` evaluates others, too."""
        return [self.iou_type] if "iou_type" in self.model_fields_set else []

    def params(self, iou_type: IouType | None = None) -> Params:
        """Returns the params of an evaluation.

        Args:
            iou_type: IoU type to evaluate beside that of the options; None: that of the options.

        Raises:
            ConfigError: a value that COCOeval has no meaning for.
        """
        iou_type = iou_type or self.iou_type
        # These are others for keypoints.
        same_kind = (iou_type == "keypoints") == (self.iou_type == "keypoints")
        return make_params(
            iou_type,
            max_dets=self.max_dets if same_kind else None,
            use_cats=self.use_cats,
            iou_thresholds=self.iou_thresholds,
            area_ranges=self.area_ranges if same_kind else None,
            oks_sigmas=self.oks_sigmas if iou_type == "keypoints" else None,
            lvis=self.lvis,
        )

    def category_entries(self) -> list[dict[str, Any]]:
        """Returns the categories as COCO entries."""
        return [entry if isinstance(entry, dict) else {"id": entry} for entry in self.categories]


def read_options(text: str, *, where: str) -> MetricOptions:
    """Reads `MetricConfig.config`; empty text means the defaults.

    Raises:
        ConfigError: no JSON object, an unknown option, or a value of the wrong kind.
    """
    try:
        options = json.loads(text or "{}")
        if not isinstance(options, dict):
            raise ConfigError(f'{where}: {text!r} is no JSON object, such as {{"max_dets": [1, 10, 100]}}.')
        return check_options(options, where=where)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: {text!r} is no JSON: {error}.") from None


def check_options(options: dict[str, Any], *, where: str) -> MetricOptions:
    """Validates options by name.

    Raises:
        ConfigError: an unknown option, or a value of the wrong kind.
    """
    unknown = sorted(set(options) - set(MetricOptions.model_fields))
    if unknown:
        known = ", ".join(MetricOptions.model_fields)
        raise ConfigError(f"{where}: {METRICS_CLASS} has no option {', '.join(unknown)}. Known are {known}.")
    try:
        parsed = MetricOptions.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {place}: {first['msg']}, not {first['input']!r}.") from None
    try:
        parsed.params()
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return parsed
