"""A blessing as TFX's own Evaluator leaves it, so that its resolver and Pusher understand it."""

from pathlib import Path
from typing import Any

from tfx import types
from tfx.components.evaluator import constants

from detection.storage.atomic import write_text

_COMPONENT_ID = "component_id"
_CURRENT_COMPONENT_ID = "current_component_id"  # execution property that TFX may set


def record_blessing(
    blessing: types.Artifact,
    *,
    blessed: bool,
    model: types.Artifact,
    baseline: types.Artifact | None,
    properties: dict[str, Any],
) -> None:
    """Fills a `ModelBlessing` artifact: its properties and its one file.

    Args:
        blessing: empty artifact.
        blessed: the verdict.
        model: that was judged.
        baseline: that it was compared with.
        properties: the execution's.
    """
    blessing.set_string_custom_property(constants.ARTIFACT_PROPERTY_CURRENT_MODEL_URI_KEY, model.uri)
    blessing.set_int_custom_property(constants.ARTIFACT_PROPERTY_CURRENT_MODEL_ID_KEY, model.id)
    if baseline:
        blessing.set_string_custom_property(constants.ARTIFACT_PROPERTY_BASELINE_MODEL_URI_KEY, baseline.uri)
        blessing.set_int_custom_property(constants.ARTIFACT_PROPERTY_BASELINE_MODEL_ID_KEY, baseline.id)
    if _CURRENT_COMPONENT_ID in properties:
        blessing.set_string_custom_property(_COMPONENT_ID, properties[_CURRENT_COMPONENT_ID])
    blessing.set_int_custom_property(
        constants.ARTIFACT_PROPERTY_BLESSED_KEY, constants.BLESSED_VALUE if blessed else constants.NOT_BLESSED_VALUE
    )
    name = constants.BLESSED_FILE_NAME if blessed else constants.NOT_BLESSED_FILE_NAME
    write_text(Path(blessing.uri, name), "")
