"""Executor of the pusher: publishes a blessed model, and records its destination or the refusal."""

import json
from typing import Any

from tfx import types
from tfx.components.util import model_utils
from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.utils import path_utils

from components.history.execution import Artifacts, recorded, run_of
from components.history.pushed_versions import ADDED_FILES, digest_of
from components.history.records import (
    DESTINATION_PROPERTY,
    DIGEST_PROPERTY,
    PUSHED_PROPERTY,
    PUSHED_VERSION_PROPERTY,
    REMOVED_PROPERTY,
    RUN_ROOT_KEY,
)
from components.history.store import relative_paths
from components.saved_model_pusher.model_registry import Registration, register
from components.saved_model_pusher.push import Pushed, PushRequest, push
from detection.storage.atomic import write_json
from detection.storage.paths import join, name_of
from schemas.artifacts import POINTER_JSON, VALIDATION_JSON
from schemas.config.config import PushConfig

PUSH_DIRECTORY_KEY = "push_directory"
CONFIG_KEY = "config"  # JSON of a PushConfig
SCORE_THRESHOLDS_KEY = "score_thresholds"  # 1: the pushed model gets those of the evaluation; 0: it does not
EVALUATION_KEY = "model_evaluation"
REGISTRATION_KEY = "registration"  # JSON of a `Registration`; absent: models are not registered

# Custom properties of the PushedModel artifact, beside those that TFX's own Pusher has.
REGISTERED_PROPERTY = "registered_model"  # string: resource name in Vertex AI, with the version


class Executor(base_executor.BaseExecutor):
    """Publishes a blessed model; records any other as not pushed.

    The artifact holds a pointer, not a second copy: the model stays in the Model artifact
    that the pointer names.  The ModelBlessing of a refused model stays: it says what was
    evaluated; the record of the refusal keeps later models from being compared with it.
    """

    @recorded("SavedModelPusher")
    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:  # noqa: N802
        """Runs the component.

        Raises:
            RefusedModelError: the model does not serve what was evaluated.
            DataError: no model or no sample of its evaluation, or the folder cannot be written.
            CocoflowError: the version is pushed, but could not be registered.
        """
        self._log_startup(input_dict, output_dict, exec_properties)
        pushed_model = artifact_utils.get_single_instance(output_dict[keys.PUSHED_MODEL_KEY])
        if not is_blessed(input_dict):
            pushed_model.set_int_custom_property(PUSHED_PROPERTY, 0)
            return
        model = artifact_utils.get_single_instance(input_dict[keys.MODEL_KEY])
        evaluations = input_dict.get(EVALUATION_KEY, [])
        request = PushRequest(
            saved_model=path_utils.serving_model_path(model.uri),
            push_directory=exec_properties[PUSH_DIRECTORY_KEY],
            evaluation=evaluations[0].uri if evaluations else None,
            options=PushConfig.model_validate_json(exec_properties[CONFIG_KEY]),
            score_thresholds=bool(exec_properties[SCORE_THRESHOLDS_KEY]),
            origin=_origin(model, pushed_model, exec_properties.get(RUN_ROOT_KEY)),
        )
        pushed = push(request)
        _record(pushed_model, pushed, model.uri, request.saved_model)
        if exec_properties.get(REGISTRATION_KEY):
            _register(pushed_model, pushed.version, exec_properties[REGISTRATION_KEY])


def is_blessed(input_dict: Artifacts) -> bool:
    """Returns True for a blessed model, and in a pipeline without an evaluator.

    Returns False if a pipeline has an evaluator but no blessing.
    """
    if keys.MODEL_BLESSING_KEY not in input_dict:
        return True
    blessings = input_dict[keys.MODEL_BLESSING_KEY]
    return bool(blessings) and all(model_utils.is_model_blessed(blessing) for blessing in blessings)


def _origin(model: types.Artifact, pushed_model: types.Artifact, root: str | None) -> dict[str, str] | None:
    """Returns where the records of a push are, for a version that is moved; None: it is not recorded."""
    if not root:
        return None
    run, _ = run_of(pushed_model.uri, root)
    return {"root": root, "model": relative_paths(model.uri, root), "run": run}


def _record(pushed_model: types.Artifact, pushed: Pushed, model_uri: str, saved_model: str) -> None:
    destination, version = pushed.version, name_of(pushed.version)
    pushed_model.set_int_custom_property(PUSHED_PROPERTY, 1)
    pushed_model.set_string_custom_property(DESTINATION_PROPERTY, destination)
    pushed_model.set_string_custom_property(PUSHED_VERSION_PROPERTY, version)
    pushed_model.set_string_custom_property(DIGEST_PROPERTY, digest_of(saved_model, ignored=ADDED_FILES))
    if pushed.removed:
        pushed_model.set_string_custom_property(REMOVED_PROPERTY, json.dumps(pushed.removed))
    if pushed.validation is not None:
        write_json(join(pushed_model.uri, VALIDATION_JSON), pushed.validation._asdict())
    pointer = {"destination": destination, "version": version, "model": model_uri}
    write_json(join(pushed_model.uri, POINTER_JSON), pointer)


def _register(pushed_model: types.Artifact, version: str, settings: str) -> None:
    registered = register(version, Registration.model_validate_json(settings))
    pushed_model.set_string_custom_property(REGISTERED_PROPERTY, registered)
