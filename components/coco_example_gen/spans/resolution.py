"""Resolves what an execution reads: its files, their span and version, and a fingerprint of them.

The driver does so before the cache is searched; where a runner has no driver, the executor does.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter
from tfx import types
from tfx.components.example_gen import utils

from components.coco_example_gen.spans.fingerprint import fingerprint
from components.coco_example_gen.spans.locate import locate, source_of
from components.history.execution import ReuseRule
from components.history.records import IDENTITY_PROPERTY, SOURCE_PROPERTY
from detection.datasets.splits import SplitFiles
from detection.storage.paths import absolute
from schemas.artifacts import TRAIN_SPLIT
from schemas.config.config import Config, DataConfig
from schemas.config.runtime_parameters import with_parameters

# Execution parameters.
SPLITS_KEY = "splits"  # resolved: JSON, split name -> fields of SplitFiles
DATA_SOURCE_KEY = SOURCE_PROPERTY  # property of the execution and of its `Examples`
DATA_KEY = "data"  # JSON of a DataConfig
OPTIONS_KEY = "options"  # resolved: JSON of its keys that decide about the records, beside the files

FINGERPRINT_PROPERTY = utils.FINGERPRINT_PROPERTY_NAME
SPAN_PROPERTY = utils.SPAN_PROPERTY_NAME
VERSION_PROPERTY = utils.VERSION_PROPERTY_NAME
_CONTENT = (FINGERPRINT_PROPERTY, SPLITS_KEY, OPTIONS_KEY)  # decide about the records

_SPLITS = TypeAdapter(dict[str, SplitFiles])


def resolve(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the execution parameters with the present files, their span, version and fingerprint.

    Args:
        properties: execution parameters.

    Raises:
        ConfigError: no data set, or keys about spans that do not fit its paths.
        DataError: the files are missing or not recognized.
    """
    data = _data_config(properties)
    located = locate(data)
    ordered = sorted(located.files, key=lambda name: name != TRAIN_SPLIT)  # train first
    newest, label_map = located.newest, data.label_map and absolute(data.label_map)
    options = data.model_copy(update={"label_map": label_map})
    return dict(properties) | {
        SPLITS_KEY: json.dumps({name: asdict(located.files[name]) for name in ordered}),
        OPTIONS_KEY: options.model_dump_json(include={"on_fault", "max_pixels", "label_map"}),
        DATA_SOURCE_KEY: source_of(data),
        SPAN_PROPERTY: newest.span,
        VERSION_PROPERTY: data.version if newest.version is None else newest.version,
        FINGERPRINT_PROPERTY: fingerprint(located.files.values(), label_map),
    }


def _deciding(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the resolved parameters that decide about the `Examples`; a requested span counts like a found one."""
    return {key: properties.get(key) for key in (DATA_SOURCE_KEY, SPAN_PROPERTY, VERSION_PROPERTY, *_CONTENT)}


REUSE_RULE = ReuseRule(deciding=_deciding)


def mark(examples: types.Artifact, resolved: Mapping[str, Any]) -> None:
    """Writes span, version, fingerprint, identity and source into the properties of an `Examples` artifact."""
    examples.set_string_custom_property(FINGERPRINT_PROPERTY, resolved[FINGERPRINT_PROPERTY])
    examples.set_string_custom_property(IDENTITY_PROPERTY, _identity(resolved))
    examples.set_string_custom_property(DATA_SOURCE_KEY, resolved[DATA_SOURCE_KEY])
    examples.set_int_custom_property(SPAN_PROPERTY, int(resolved[SPAN_PROPERTY]))
    if resolved.get(VERSION_PROPERTY) is not None:
        examples.set_int_custom_property(VERSION_PROPERTY, int(resolved[VERSION_PROPERTY]))


def reading_of(properties: Mapping[str, Any]) -> tuple[dict[str, SplitFiles], DataConfig]:
    """Returns the files that an execution reads, and the options of reading them."""
    return _SPLITS.validate_json(properties[SPLITS_KEY]), DataConfig.model_validate_json(properties[OPTIONS_KEY])


def _data_config(properties: Mapping[str, Any]) -> DataConfig:
    config = Config(data=DataConfig.model_validate_json(properties[DATA_KEY]))
    return with_parameters(config, properties).data


def _identity(resolved: Mapping[str, Any]) -> str:
    parts = [str(resolved.get(key)) for key in _CONTENT]
    return hashlib.sha256("\0".join(parts).encode(errors="backslashreplace")).hexdigest()[:16]
