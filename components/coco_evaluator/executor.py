"""The evaluator's work: run the models over a split, write what they reach, bless the candidate or not."""

import os
from collections.abc import Sequence
from typing import Any

from tfx import types
from tfx.components.evaluator import constants
from tfx.dsl.components.base import base_beam_executor
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.utils import path_utils

from components.coco_evaluator.beam.models_pass import EvaluationRequest
from components.coco_evaluator.evaluation import evaluate_models
from components.coco_evaluator.tfma.eval_config import parse_eval_config
from components.coco_evaluator.tfma.slice_metrics import BASELINE, CANDIDATE
from components.history.execution import Artifacts, recorded, resolved
from detection.datasets.examples import read_dataset, require_same_ids
from detection.devices import require_given_accelerator
from detection.inference.restore import read_model_categories
from detection.storage.atomic import write_text
from detection.storage.files import remove_file
from detection.storage.paths import join
from schemas.config.config import Config
from schemas.config.evaluate import EvaluateConfig
from schemas.config.runtime_parameters import with_parameters
from schemas.errors import DataError

CONFIG_KEY = "config"  # JSON of an EvaluateConfig
THRESHOLDS_KEY = "evaluate_thresholds"  # a runtime parameter (`schemas.config.runtime_parameters`); may be absent
EVAL_CONFIG_KEY = "eval_config"  # JSON of a tfma.EvalConfig, or absent
SERVED_IMAGES_KEY = "served_images"  # number of images with outputs to keep for the pusher, or absent


def record_blessing(
    blessing: types.Artifact, *, blessed: bool, model: types.Artifact, baseline: types.Artifact | None
) -> None:
    """Fills a `ModelBlessing` artifact: its properties and its one file.

    Args:
        blessing: empty artifact.
        blessed: whether the model is blessed.
        model: the candidate.
        baseline: the last blessed model; None: there was none.
    """
    blessing.set_string_custom_property(constants.ARTIFACT_PROPERTY_CURRENT_MODEL_URI_KEY, model.uri)
    blessing.set_int_custom_property(constants.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY, model.id)
    if baseline:
        blessing.set_string_custom_property(constants.ARTIFACT_PROPERTY_BASELINE_MODEL_URI_KEY, baseline.uri)
        blessing.set_int_custom_property(constants.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY, baseline.id)
    blessing.set_int_custom_property(
        constants.ARTIFACT_PROPERTY_BLESSED_KEY, constants.BLESSED_VALUE if blessed else constants.NOT_BLESSED_VALUE
    )
    name = constants.BLESSED_FILE_NAME if blessed else constants.NOT_BLESSED_FILE_NAME
    write_text(join(blessing.uri, name), "")


class Executor(base_beam_executor.BaseBeamExecutor):
    """Evaluates a model on a split and fills `evaluation` and `blessing`."""

    @recorded("CocoEvaluator")
    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:  # noqa: N802
        """Runs the component.

        Raises:
            ConfigError: this container was given an accelerator that TensorFlow does not see.
            DataError: the split, a record or a model cannot be used.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        require_given_accelerator(os.environ)
        examples = artifact_utils.get_single_instance(input_dict[keys.EXAMPLES_KEY])
        model = artifact_utils.get_single_instance(input_dict[keys.MODEL_KEY])
        baseline = find_baseline(model, resolved(input_dict.get(keys.BASELINE_MODEL_KEY, [])))
        blessing = artifact_utils.get_single_instance(output_dict[keys.BLESSING_KEY])
        for name in (constants.BLESSED_FILE_NAME, constants.NOT_BLESSED_FILE_NAME):
            remove_file(join(blessing.uri, name))  # left by an earlier attempt
        models = {CANDIDATE: model} | ({BASELINE: baseline} if baseline else {})
        request = make_request(examples, models, exec_properties)
        _require_same_ids(request)
        evaluation = evaluate_models(
            request, artifact_utils.get_single_uri(output_dict[keys.EVALUATION_KEY]), beam_args=self._beam_pipeline_args
        )
        record_blessing(blessing, blessed=evaluation.verdict.blessed, model=model, baseline=baseline)


def make_request(
    examples: types.Artifact, models: dict[str, types.Artifact], properties: dict[str, Any]
) -> EvaluationRequest:
    """Builds the request from artifacts and execution properties.

    Args:
        examples: `Examples` of `CocoExampleGen`.
        models: `candidate` and optionally `baseline`.
        properties: execution properties.

    Raises:
        ConfigError: invalid thresholds of the submission.
        DataError: the artifact lacks the split, or was not written by CocoExampleGen.
    """
    given = Config(evaluate=EvaluateConfig.model_validate_json(properties[CONFIG_KEY]))
    config = with_parameters(given, properties).evaluate
    split = config.split
    splits = artifact_utils.decode_split_names(examples.split_names)
    if split not in splits:
        raise DataError(
            f"{examples.uri}: no split {split!r}, only {', '.join(splits)}. Correct evaluate.split or the data set."
        )
    dataset = read_dataset(examples.uri, split)
    eval_config = properties.get(EVAL_CONFIG_KEY)
    return EvaluationRequest(
        records=dataset.records,
        images=dataset.images,
        categories=dataset.categories,
        models={part: path_utils.serving_model_path(model.uri) for part, model in models.items()},
        locations={part: model.uri for part, model in models.items()} | {"data": examples.uri},
        config=config,
        eval_config=parse_eval_config(eval_config) if eval_config else None,
        served_images=properties.get(SERVED_IMAGES_KEY) or 0,
    )


def _require_same_ids(request: EvaluationRequest) -> None:
    """Requires the category ids of the last blessed model, unless others are accepted; see `require_same_ids`."""
    if BASELINE in request.models and not request.config.accept_renumbered_categories:
        own = read_model_categories(request.models[BASELINE]) or ()
        require_same_ids(own, request.categories, data=request.locations["data"])


def find_baseline(model: types.Artifact, baselines: Sequence[types.Artifact]) -> types.Artifact | None:
    """Returns the model to compare with; None without one, or if it is the candidate itself."""
    others = [other for other in baselines if other.uri != model.uri and not (other.id and other.id == model.id)]
    return others[0] if others else None
