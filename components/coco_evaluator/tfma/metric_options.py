"""Options of our metrics in an `EvalConfig`: the JSON of `MetricConfig.config`."""

from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from detection.coco.params import Params, make_params
from schemas.errors import ConfigError
from schemas.metrics import IouType, MetricParams

METRICS_CLASS = "CocoMetrics"
METRICS_MODULE = "components.coco_evaluator.tfma_metrics"


class MetricOptions(MetricParams):
    """Options of `CocoMetrics`.

    categories: ids of the data set's categories, or COCO's `categories` entries, as
        LVIS needs them.  The stock Evaluator needs them; the `CocoEvaluator` has them
        from the data set.

    The others are those of `detection.coco.params.make_params`.
    """

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
        params = self.model_dump(exclude={"categories"}) | {"iou_type": iou_type or self.iou_type}
        if (params["iou_type"] == "keypoints") != (self.iou_type == "keypoints"):
            params |= {"max_dets": None, "area_ranges": None}  # keypoints have others
        params |= {"metrics": ()} if params["iou_type"] == "keypoints" else {"oks_sigmas": None}
        return make_params(**params)

    def category_entries(self) -> list[dict[str, Any]]:
        """Returns the categories as COCO entries."""
        return [entry if isinstance(entry, dict) else {"id": entry} for entry in self.categories]


def read_options(options: str | dict[str, Any], *, where: str) -> MetricOptions:
    """Reads `MetricConfig.config`, or options by name; empty text means the defaults.

    Raises:
        ConfigError: no JSON object, an unknown option, or a value of the wrong kind.
    """
    try:
        given = options if isinstance(options, dict) else from_json(options or "{}")
        parsed = MetricOptions.model_validate(given)
        parsed.params()
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or METRICS_CLASS
        known = f" Options are {', '.join(MetricOptions.model_fields)}." if first["type"] == "extra_forbidden" else ""
        raise ConfigError(f"{where}: {place}: {first['msg']}, not {first['input']!r}.{known}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {options!r} is no JSON: {error}.") from None
    return parsed
