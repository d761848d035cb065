"""A request for an evaluation of models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from schemas.config.evaluate import EvaluateConfig


@dataclass(frozen=True)
class Task:
    """An evaluation of models on the records of a split.

    records: folder or pattern of the TFRecord files, see `find_shards`.
    images: number of images; None: unknown, they are counted first.
    categories: COCO `categories` of the data set.
    models: SavedModel folder of `candidate` and optionally `baseline`, whose detections of
        unknown categories are left out.
    eval_config: checked `tfma.EvalConfig`; None: COCO's params on all images.
    config: options of the evaluation; its `split` and `eval_config` are read already.
    title: title of the report.
    locations: path of each model and, as `data`, of the examples, as shown in TFMA's files and
        the report.
    served_images: number of images whose outputs of the candidate are kept for the pusher.
    """

    records: str
    images: int | None
    categories: Sequence[dict[str, Any]]
    models: Mapping[str, str]
    locations: Mapping[str, str]
    title: str
    config: EvaluateConfig
    eval_config: Any | None = None
    served_images: int = 0
