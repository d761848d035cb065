"""The trainer's executor: finds the records, trains below the run's folder, publishes the results."""

import functools
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfx import types
from tfx.components.example_gen import utils
from tfx.dsl.components.base import base_executor
from tfx.types import artifact_utils
from tfx.types import standard_component_specs as keys
from tfx.utils import path_utils

from components.detection_trainer.identity import (
    REUSE_RULE,
    SPLIT_KEY,
    VALIDATION_SPLIT_KEY,
    series_name,
    training_identity,
    training_of,
    working_name,
)
from components.detection_trainer.working_folder import (
    copy_parts,
    describe_training,
    find_shorter,
    restore_training,
    working_folder,
)
from components.history.execution import Artifacts, recorded, resolved
from components.history.queries import History
from components.history.records import CONFIG_PROPERTY, IDENTITY_PROPERTY, RUN_ROOT_KEY, TRAINING_PROPERTY
from components.history.store import store_config
from detection.datasets.annotations.annotation_file import differing_categories
from detection.datasets.importers.label_map import read_dataset_file
from detection.input_pipeline.record_index import fingerprint_records
from detection.storage.atomic import new_directory
from detection.storage.files import local_copy, read_text
from detection.storage.lock import open_working_folder
from detection.storage.paths import join, relative
from detection.training.auto.data_facts import require_trainable
from detection.training.distributed.cluster import cluster_from_environment
from detection.training.resolve import steps_of_budget
from detection.training.train import train
from schemas.artifacts import (
    BEFORE_DECAY,
    CHECKPOINTS,
    CONFIG_YAML,
    DATASET_JSON,
    INIT_REPORT_JSON,
    LABELS_JSON,
    LOGS,
    PERFORMANCE_JSON,
    SAVED_MODEL,
    SAVED_MODEL_FILE,
    TRAINING,
    TRAINING_JSON,
    VALIDATION,
)
from schemas.config.config import Config
from schemas.errors import DataError


class Executor(base_executor.BaseExecutor):
    """Trains a detector and publishes it."""

    @recorded("DetectionTrainer", REUSE_RULE)
    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:  # noqa: N802
        """Runs the component.

        Raises:
            CocoflowError: the examples or the configuration cannot be used, or the training failed.
        """
        train_component(input_dict, output_dict, exec_properties)


def train_component(input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
    """Does the component's work, on each machine of the training.

    Raises:
        DataError: examples lack the split or their description, or those of several spans
            have different categories.
        CocoflowError: the configuration or the machine cannot be used, or a loss or gradient became NaN or infinite.
    """
    examples = sorted(resolved(input_dict[keys.EXAMPLES_KEY]), key=_span, reverse=True)
    run_root = exec_properties[RUN_ROOT_KEY]
    config, properties = training_of(exec_properties)
    base_model = next(iter(resolved(input_dict.get(keys.BASE_MODEL_KEY, []))), None)
    shards = _shards(examples, properties[SPLIT_KEY])
    # The validation split is that of the newest span, as after training.
    validation_shards = _shards(examples[:1], properties[VALIDATION_SPLIT_KEY])
    datasets = [read_dataset_file(join(artifact.uri, DATASET_JSON)) for artifact in examples]
    judged = config.evaluate.split
    require_trainable(datasets, config, judged=judged if judged in datasets[0].get("splits", {}) else "")
    # It decides nothing, so the training's identity does not depend on it; few trainings need a local copy of it.
    has_curve = config.curve_split in artifact_utils.decode_split_names(examples[0].split_names)
    curve_shards = functools.partial(_shards, examples[:1], config.curve_split if has_curve else "")
    categories = _categories(examples, datasets)
    parts: dict[str, Any] = {
        "records": [fingerprint_records(shards), fingerprint_records(validation_shards)],
        "categories": categories,
        "base_model": base_model,
    }
    cluster = cluster_from_environment(os.environ)
    trained, series, shorter = list(History(run_root).models.values())[::-1], series_name(properties, **parts), None
    # The machines of a training share no folder before it starts; with epochs or `auto`, more data make more steps.
    if cluster is None and (isinstance(config.train.steps, int) or config.train.budget):
        shorter = find_shorter((one.model_run for one in trained), series, functools.partial(_steps_after, config))
    name = working_name(properties, **parts, shorter=shorter[1] if shorter else "")
    model = artifact_utils.get_single_instance(output_dict[keys.MODEL_KEY])
    model_run = artifact_utils.get_single_instance(output_dict[keys.MODEL_RUN_KEY])
    # Among several machines, only the chief writes; the others wait for it in `train`.
    leads = cluster is None or cluster.is_chief
    folder = join(run_root, TRAINING)
    with working_folder(folder, name) if leads else open_working_folder(join(folder, name)) as working:
        if leads:
            restore_training(working.local, [one.model_run for one in trained if one.identity == name], name)
            if shorter:
                restore_training(working.local, shorter[:1], shorter[1])
        train(
            config,
            shards=shards,
            validation_shards=validation_shards,
            curve_shards=curve_shards,
            datasets=datasets,
            categories=categories,
            output=working.local,
            base_model=None if base_model is None else path_utils.serving_model_dir(base_model.uri),
            mirror=working,
        )
        if leads:
            working.push()
            _publish(working.local, model.uri, model_run.uri, name, series)
    if leads:
        _describe(model, run_root, name, training_identity(properties, examples))


def _steps_after(config: Config, shorter: Config) -> int:
    """Returns the steps of a configuration with `train.steps` or `train.budget`, by a resolved one of the series."""
    return config.train.steps if config.train.steps != "auto" else steps_of_budget(config.train.budget or 0.0, shorter)


def _shards(examples: Sequence[types.Artifact], split: str | None) -> list[str]:
    """Returns the files of a split, on a local disk, as records are read in any order; without a split none."""
    shards: list[str] = []
    for artifact in examples if split else ():
        splits = artifact_utils.decode_split_names(artifact.split_names)
        if split not in splits:
            raise DataError(f"{artifact.uri}: no split {split!r}, only {', '.join(splits)}.")
        folder = local_copy(artifact_utils.get_split_uri([artifact], split))
        shards += sorted(str(path) for path in folder.iterdir())
    return shards


def _categories(examples: Sequence[types.Artifact], datasets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the categories, which have to be the same in all examples.

    Args:
        examples: artifacts to train on.
        datasets: their dataset.json, in the same order.
    """
    first: list[dict[str, Any]] = list(datasets[0]["categories"])
    for artifact, dataset in zip(examples, datasets, strict=True):
        listed = differing_categories(first, list(dataset["categories"]))
        if listed:
            raise DataError(
                f"span {_span(examples[0])} ({examples[0].uri}) and span {_span(artifact)} ({artifact.uri}) have "
                f"different categories: {listed}. Give both the same, or train on fewer spans with --set data.window=N."
            )
    return first


def _span(examples: types.Artifact) -> int:
    return int(examples.get_int_custom_property(utils.SPAN_PROPERTY_NAME))


def _publish(working: Path, model: str, model_run: str, name: str, series: str) -> None:
    saved_model = relative(path_utils.serving_model_dir(model), model)
    with new_directory(model, last=[join(saved_model, SAVED_MODEL_FILE)]) as folder:
        shutil.copytree(working / SAVED_MODEL, path_utils.serving_model_dir(str(folder)))
        copy_parts(working, folder, (CONFIG_YAML, INIT_REPORT_JSON))
    with new_directory(model_run, last=[TRAINING_JSON]) as folder:
        reports = (CONFIG_YAML, LABELS_JSON, INIT_REPORT_JSON, PERFORMANCE_JSON)
        parts = (BEFORE_DECAY, CHECKPOINTS, LOGS, VALIDATION, *reports)
        copy_parts(working, folder, parts)
        describe_training(folder, name, series)


def _describe(model: types.Artifact, run_root: str, identity: str, training: str) -> None:
    """Sets the model's properties: identities and digest of the configuration, of which the history keeps a copy."""
    model.set_string_custom_property(IDENTITY_PROPERTY, identity)
    model.set_string_custom_property(TRAINING_PROPERTY, training)
    config = store_config(run_root, read_text(join(model.uri, CONFIG_YAML)))
    model.set_string_custom_property(CONFIG_PROPERTY, config)
