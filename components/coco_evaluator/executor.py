"""What the evaluator does: run the models over a split, write figures, judge the candidate."""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
from tfx import types
from tfx.dsl.components.base import base_beam_executor
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.utils import path_utils

from components.coco_evaluator.blessing import record_blessing
from components.coco_evaluator.tfma_output import write_tfma
from components.coco_evaluator.transforms import Evaluated, EvaluateToFile, read_evaluated
from components.coco_evaluator.verdict import Figures, judge
from detection.atomic_files import write_json
from detection.coco import CocoMetrics
from detection.coco.json_files import read_json
from detection.coco.report import write_metrics
from detection.coco.results import write_results
from schemas.artifacts import BLESSING_JSON, DATASET_JSON, DETECTIONS_JSON, METRICS_JSON
from schemas.errors import DataError

SPLIT_KEY = "split"
BATCH_SIZE_KEY = "batch_size"
THRESHOLDS_ABSOLUTE_KEY = "thresholds_absolute"  # JSON: figure -> least value
THRESHOLDS_IMPROVEMENT_KEY = "thresholds_improvement"  # JSON: figure -> least difference to the baseline

_CANDIDATE, _BASELINE = "candidate", "baseline"
_WORK = ".work"  # inside the artifact, while it is written: storage that all workers see

log = logging.getLogger("cocoflow.evaluator")


class Executor(base_beam_executor.BaseBeamExecutor):
    """Exact COCO metrics of a model on a split, and its blessing."""

    def Do(  # noqa: N802 (TFX's name)
        self,
        input_dict: dict[str, list[types.Artifact]],
        output_dict: dict[str, list[types.Artifact]],
        exec_properties: dict[str, Any],
    ) -> None:
        """Runs the component.

        Raises:
            DataError: the split, a record or a model cannot be used.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        examples = artifact_utils.get_single_instance(input_dict[keys.EXAMPLES_KEY])
        model = artifact_utils.get_single_instance(input_dict[keys.MODEL_KEY])
        baseline = find_baseline(model, input_dict.get(keys.BASELINE_MODEL_KEY, []))
        folder = Path(artifact_utils.get_single_uri(output_dict[keys.EVALUATION_KEY]))
        models = {_CANDIDATE: model} | ({_BASELINE: baseline} if baseline else {})
        try:
            evaluated = self._evaluate(examples, models, exec_properties, folder / _WORK)
        finally:
            shutil.rmtree(folder / _WORK, ignore_errors=True)
        metrics = {name: _summarise(name, result) for name, result in evaluated.items()}
        candidate = metrics[_CANDIDATE]
        before = metrics[_BASELINE].figures if baseline else None
        write_results(folder / DETECTIONS_JSON, evaluated[_CANDIDATE].rows)
        write_metrics(folder / METRICS_JSON, candidate)
        write_tfma(folder, candidate, model=model.uri, data=examples.uri)
        verdict = judge(
            candidate.figures,
            before,
            absolute=_thresholds(exec_properties, THRESHOLDS_ABSOLUTE_KEY),
            improvement=_thresholds(exec_properties, THRESHOLDS_IMPROVEMENT_KEY),
        )
        write_json(folder / BLESSING_JSON, {**verdict._asdict(), "baseline": before})
        blessing = artifact_utils.get_single_instance(output_dict[keys.BLESSING_KEY])
        record_blessing(blessing, blessed=verdict.blessed, model=model, baseline=baseline, properties=exec_properties)
        log.info("%s: %s", "blessed" if verdict.blessed else "not blessed", "; ".join(verdict.reasons))

    def _evaluate(
        self, examples: types.Artifact, models: Mapping[str, types.Artifact], properties: dict[str, Any], work: Path
    ) -> dict[str, Evaluated]:
        """Runs all models over the split in one pass; the results by the models' names."""
        categories = read_categories(examples.uri)
        split = properties[SPLIT_KEY]
        pattern = find_records(examples, split)
        work.mkdir(parents=True, exist_ok=True)
        with self._make_beam_pipeline() as pipeline:
            records = pipeline | "Read" >> beam.io.ReadFromTFRecord(pattern)
            for name, model in models.items():
                records | name >> EvaluateToFile(
                    model=path_utils.serving_model_path(model.uri),
                    batch_size=properties[BATCH_SIZE_KEY],
                    categories=categories,
                    path=str(work / name),
                    known_only=name == _BASELINE,
                )
        evaluated = {name: read_evaluated(str(work / name), categories) for name in models}
        if not evaluated[_CANDIDATE].accumulator.image_count:
            raise DataError(f"{pattern}: the split {split} has no image. Evaluate on a split that has some.")
        return evaluated


def find_baseline(model: types.Artifact, baselines: Sequence[types.Artifact]) -> types.Artifact | None:
    """The model to compare with; None where there is none, or only the candidate itself."""
    others = [other for other in baselines if other.uri != model.uri and not (other.id and other.id == model.id)]
    return others[0] if others else None


def find_records(examples: types.Artifact, split: str) -> str:
    """File pattern of a split's records.

    Raises:
        DataError: the artifact has no such split, or no file in it.
    """
    splits = artifact_utils.decode_split_names(examples.split_names)
    if split not in splits:
        raise DataError(
            f"{examples.uri}: no split {split!r}, only {', '.join(splits)}. Correct evaluate.split or the data set."
        )
    folder = Path(artifact_utils.get_split_uri([examples], split))
    if not any(folder.glob("*")):
        raise DataError(f"{folder}: no file of records. Write the examples again.")
    return str(folder / "*")


def read_categories(examples_uri: str) -> list[dict[str, Any]]:
    """The data set's categories.

    Raises:
        DataError: the artifact has no readable description, or one without categories.
    """
    path = Path(examples_uri, DATASET_JSON)
    dataset = read_json(path)
    if not isinstance(dataset, dict) or not isinstance(dataset.get("categories"), list):
        raise DataError(f"{path}: no list `categories`. Write the examples with CocoExampleGen.")
    return dataset["categories"]


def _summarise(name: str, evaluated: Evaluated) -> CocoMetrics:
    metrics = evaluated.accumulator.result()
    log.info(
        "%s: %d images, %d detections, AP %.4f, AP50 %.4f",
        name,
        evaluated.accumulator.image_count,
        len(evaluated.rows),
        metrics.figures["AP"],
        metrics.figures["AP50"],
    )
    return metrics


def _thresholds(properties: dict[str, Any], key: str) -> Figures:
    thresholds: dict[str, float] = json.loads(properties.get(key) or "{}")
    return thresholds
