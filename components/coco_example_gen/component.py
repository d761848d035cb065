"""The component's contract: parameters, and the `Examples` artifact that it writes."""

import json
from collections.abc import Mapping

from tfx import types
from tfx.components import FileBasedExampleGen
from tfx.dsl.components.base import executor_spec
from tfx.proto import example_gen_pb2, range_config_pb2
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.coco_example_gen.driver import DATA_SOURCE_KEY, PINNED_VERSION_KEY, Driver
from components.coco_example_gen.executor import (
    LABEL_MAP_KEY,
    MAX_PIXELS_KEY,
    ON_FAULT_KEY,
    SPLITS_KEY,
    Executor,
    splits_to_json,
)
from components.coco_example_gen.spans import (
    SpanSplits,
    fill_version,
    locate_given,
    locate_root,
    map_paths,
    placeholders,
)
from detection.datasets.layouts import WHOLE, Division, SplitFiles
from detection.storage.paths import absolute, join, require_supported
from schemas.config.issues import MAX_PIXELS, IssuePolicies
from schemas.errors import ConfigError


class CocoExampleGenSpec(ComponentSpec):
    """Files in, Examples out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        SPLITS_KEY: ExecutionParameter(type=str),
        ON_FAULT_KEY: ExecutionParameter(type=str),
        MAX_PIXELS_KEY: ExecutionParameter(type=int),
        LABEL_MAP_KEY: ExecutionParameter(type=str, optional=True),
        # What TFX's own driver, which Kubeflow runs in place of ours, needs for its fingerprint.
        keys.INPUT_BASE_KEY: ExecutionParameter(type=str),
        keys.INPUT_CONFIG_KEY: ExecutionParameter(type=example_gen_pb2.Input),
        keys.RANGE_CONFIG_KEY: ExecutionParameter(type=range_config_pb2.RangeConfig, optional=True),
        PINNED_VERSION_KEY: ExecutionParameter(type=int, optional=True),
        DATA_SOURCE_KEY: ExecutionParameter(type=str),
    }
    INPUTS: dict[str, ChannelParameter] = {}  # noqa: RUF012
    OUTPUTS = {keys.EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples)}  # noqa: RUF012


class CocoExampleGen(FileBasedExampleGen):
    """Makes `Examples` from a COCO data set.

    Plain TFRecords of `tf.train.Example` with the keys of `schemas.features`, one split
    per annotation file; beside them dataset.json and quarantine.jsonl.  Runs again when
    an annotation file or an image that it names has changed.
    """

    SPEC_CLASS = CocoExampleGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(
        self,
        *,
        data_root: str | None = None,
        splits: Mapping[str, tuple[str, str | None]] | None = None,
        label_map: str | None = None,
        on_fault: IssuePolicies | None = None,
        max_pixels: int = MAX_PIXELS,
        division: Division = WHOLE,
        span: int | None = None,
        version: int | None = None,
        located: SpanSplits | None = None,
    ) -> None:
        """Finds the files and wires the component.

        Args:
            data_root: folder in one of the recognised layouts; in it, {SPAN} or a date
                and {VERSION} may stand for where new data arrives (see `spans`).
            splits: instead of it, split name -> (annotation file, image folder), or
                (pattern of TFRecords, None), with such placeholders as well.
            label_map: categories of TFRecords that have none, see `read_label_map`.
            on_fault: what is done about each kind of issue; None: the defaults.
            max_pixels: images of more are refused before they are decoded.
            division: how the files become splits.
            span: to read; None: the newest when the component runs.
            version: of the span; None: the newest when the component runs.
            located: the files, if the caller has located them already; None: they are located here.

        Raises:
            ConfigError: neither or both of `data_root` and `splits`; placeholders that
                name no span, or not the one that is asked for.
            DataError: the files are not there, of no span or not of that one, or not
                recognised.
        """
        if bool(data_root) == bool(splits):
            raise ConfigError(
                "Name one data set: --data DIR (data.root), or data.splits.<name>.annotations and .images, not both."
            )
        require_supported(label_map or "", "data.label_map")
        if located is None and data_root:
            located = locate_root(data_root, division=division, span=span, version=version)
        elif located is None:
            located = locate_given(splits or {}, division=division, span=span, version=version)
        # TFX's driver cannot be asked for a version.
        filled = map_paths(located.splits, lambda path: fill_version(path, version))
        spec = CocoExampleGenSpec(
            splits=splits_to_json(filled),
            on_fault=(on_fault or IssuePolicies()).model_dump_json(),
            max_pixels=max_pixels,
            label_map=label_map and absolute(label_map),
            input_base="/",
            input_config=_input_config(filled),
            range_config=_one_span(span),
            pinned_version=version,
            data_source=_data_source(data_root, splits),
            examples=types.Channel(type=standard_artifacts.Examples),
        )
        super(FileBasedExampleGen, self).__init__(spec=spec)


def _data_source(data_root: str | None, splits: Mapping[str, tuple[str, str | None]] | None) -> str:
    if data_root:
        return absolute(data_root)
    return json.dumps({name: absolute(annotations) for name, (annotations, _) in sorted((splits or {}).items())})


def _one_span(span: int | None) -> range_config_pb2.RangeConfig | None:
    if span is None:
        return None
    return range_config_pb2.RangeConfig(
        static_range=range_config_pb2.StaticRange(start_span_number=span, end_span_number=span)
    )


def _input_config(splits: Mapping[str, SplitFiles]) -> example_gen_pb2.Input:
    patterns = []
    for name, files in splits.items():
        patterns.append((name, files.annotations))
        # TFX wants the same placeholders in all patterns.
        if files.images and placeholders(files.images) == placeholders(files.annotations):
            patterns.append((f"{name}-images", join(files.images, "*")))
    return example_gen_pb2.Input(
        splits=[example_gen_pb2.Input.Split(name=name, pattern=pattern) for name, pattern in patterns]
    )
