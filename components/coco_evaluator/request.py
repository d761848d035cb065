"""What an evaluation of models is asked to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from components.coco_evaluator.thresholds import Thresholds
from detection.analysis.options import AnalysisOptions


@dataclass(frozen=True)
class Task:
    """Models on the records of a split.

    records: folder or pattern of the TFRecord files, see `find_shards`.
    images: how many they hold; None: nobody has counted them.
    categories: COCO `categories` of the data set.
    models: SavedModel folder by part: `candidate`, and maybe `baseline`, of which what
        it finds of other categories is left out.
    eval_config: checked `tfma.EvalConfig`; None: COCO's own parameters on all images.
    thresholds: of the blessing, beside those of `eval_config`.
    analysis: of what is told beyond the figures.
    losses: whether the candidate's mean losses on the analysed images are told, too.
    batch_size: images a call of a model.
    images_per_state: from more on the evaluation is divided by category and area range.
    title: of the report.
    locations: where each model and, as `data`, the examples lie; as TFMA's files and
        the report tell it.
    """

    records: str
    images: int | None
    categories: Sequence[dict[str, Any]]
    models: Mapping[str, str]
    locations: Mapping[str, str]
    title: str
    eval_config: Any | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    analysis: AnalysisOptions = field(default_factory=AnalysisOptions)
    losses: bool = True
    batch_size: int = 8
    images_per_state: int = 200_000
