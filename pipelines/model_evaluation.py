"""Evaluating a model without a pipeline: the same work, and the same files, as the pipeline's CocoEvaluator."""

import apache_beam as beam

from components.coco_evaluator.eval_config import read_eval_config
from components.coco_evaluator.evaluation import Evaluation, evaluate_models
from components.coco_evaluator.examples import read_dataset
from components.coco_evaluator.slice_figures import BASELINE, CANDIDATE
from components.coco_evaluator.task import Task
from components.coco_evaluator.verdict import Thresholds
from detection.coco.analysis.options import AnalysisOptions
from detection.inference import require_saved_model
from pipelines.data_as_examples import data_as_examples
from pipelines.output_folder import output_folder
from schemas.config import Config


def evaluate_model(config: Config, *, model: str, examples: str, baseline: str | None, output: str) -> Evaluation:
    """Evaluates a SavedModel on a split, into a folder that appears whole.

    Args:
        config: `evaluate` and `run.beam_args` count; for a COCO data set `data`, too.
        model: SavedModel folder.
        examples: folder of an `Examples` artifact, or of another data set, which
            `data.root` then names, too.
        baseline: SavedModel folder to compare with; None: none.
        output: folder, new or empty.  What killed runs left beside it is removed.

    Raises:
        ConfigError: the configuration and the data set do not fit; an `EvalConfig` that
            is not honoured.
        DataError: the data or a model cannot be used, or the folder cannot be written.
    """
    evaluation = config.evaluate
    eval_config = None if evaluation.eval_config is None else read_eval_config(evaluation.eval_config)
    locations = {CANDIDATE: model} | ({BASELINE: baseline} if baseline else {})
    for place in locations.values():
        require_saved_model(place)
    with output_folder(output) as folder, data_as_examples(config, examples) as root:
        dataset = read_dataset(root, evaluation.split)
        task = Task(
            records=dataset.records,
            images=dataset.images,
            categories=dataset.categories,
            models=locations,
            locations={**locations, "data": examples},
            title=f"Evaluation on {evaluation.split}",
            eval_config=eval_config,
            thresholds=Thresholds(**evaluation.thresholds.model_dump()),
            analysis=AnalysisOptions(**evaluation.analysis.model_dump()),
            losses=evaluation.losses,
            batch_size=evaluation.batch_size,
            images_per_state=evaluation.images_per_state,
        )
        return evaluate_models(task, folder, make_pipeline=lambda: beam.Pipeline(argv=list(config.run.beam_args)))
