"""Evaluates a model without a pipeline: the same work and files as the pipeline's CocoEvaluator."""

from collections.abc import Mapping, Sequence
from typing import Any

from components.coco_evaluator.beam.models_pass import EvaluationRequest
from components.coco_evaluator.evaluation import Evaluation, evaluate_models
from components.coco_evaluator.measured_types import require_iou_types
from components.coco_evaluator.tfma.eval_config import read_eval_config
from components.coco_evaluator.tfma.slice_metrics import BASELINE, CANDIDATE
from components.coco_example_gen.to_examples import data_as_examples
from detection.datasets.examples import require_categories
from detection.inference.detectors import open_detector
from detection.inference.formats.model_files import model_folder
from detection.inference.restore import read_model_categories
from detection.inference.test_time_augmentation import augmented
from detection.pretrained.detectors import find_model
from detection.storage.outputs import output_folder
from detection.storage.paths import absolute
from detection.weights.locate import CheckpointChoice
from schemas.artifacts import BLESSING_JSON
from schemas.config.config import Config
from schemas.program import require_module


def evaluate_model(
    config: Config, *, model: str, checkpoint: CheckpointChoice = None, examples: str, baseline: str | None, output: str
) -> Evaluation:
    """Evaluates a model on a split, into a folder that appears complete or not at all.

    Args:
        config: `evaluate` and `run.beam_args` are used; for a COCO data set also `data`.
        model: output of a training, a push directory, whose newest version counts, or a model: a SavedModel, or an
            export for LiteRT or ONNX.
        checkpoint: checkpoint of a training: `newest`, `best` or a step; None: the exported one.
        examples: folder of an `Examples` artifact, or of another data set, which `data.root`
            then names, too.
        baseline: model to compare with, in one of the forms of `model`; None: no baseline.
        output: folder, new or empty, that the workers of `run.beam_args` reach.  Leftovers of killed
            runs beside it, or in a remote one, are removed.

    Raises:
        ConfigError: the configuration and the data set do not fit; an `EvalConfig` that
            is not honoured; TFMA, whose files are among the output, is not installed.
        DataError: the data or a model cannot be used, the model detects categories that
            the data set lacks, or the folder cannot be written.
    """
    require_module("tensorflow_model_analysis")
    evaluation = config.evaluate
    eval_config = None if evaluation.eval_config is None else read_eval_config(evaluation.eval_config)
    model = model_folder(find_model(model, checkpoint))
    locations = {CANDIDATE: model} | ({BASELINE: model_folder(find_model(baseline))} if baseline else {})
    require_iou_types(locations, evaluation, eval_config)
    own = read_model_categories(model) or ()

    def check(categories: Sequence[Mapping[str, Any]]) -> None:
        # Data of another tool is converted first, which takes minutes: check before what would fail after.
        for place in locations.values():
            size = evaluation.batch_size
            augmented(open_detector(place, batch_size=size), evaluation.tta, batch_size=size)
        require_categories(own, categories, model=model, data=examples)

    with (
        output_folder(output, last=BLESSING_JSON) as folder,
        data_as_examples(config, examples, split=evaluation.split, check=check, shared=folder) as dataset,
    ):
        require_categories(own, dataset.categories, model=model, data=examples)
        request = EvaluationRequest(
            records=absolute(dataset.records),  # workers may have other working folders
            images=dataset.images,
            categories=dataset.categories,
            models={part: absolute(place) for part, place in locations.items()},
            locations={**locations, "data": examples},
            config=evaluation,
            eval_config=eval_config,
        )
        return evaluate_models(request, folder, beam_args=config.run.beam_args)
