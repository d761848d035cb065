"""The component's contract: parameters, and the `Examples` artifact that it writes."""

from collections.abc import Mapping

from tfx import types
from tfx.components import FileBasedExampleGen
from tfx.dsl.components.base import executor_spec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.coco_example_gen.executor import Executor
from components.coco_example_gen.spans.driver import Driver
from components.coco_example_gen.spans.locate import data_source, require_one_data_set
from components.coco_example_gen.spans.resolution import (
    DATA_KEY,
    DATA_SOURCE_KEY,
    LABEL_MAP_KEY,
    MAX_PIXELS_KEY,
    ON_FAULT_KEY,
    PINNED_SPAN_KEY,
    PINNED_VERSION_KEY,
    SPLITS_KEY,
    pinned_to,
    splits_to_json,
)
from components.coco_example_gen.spans.span_paths import SpanSplits, locate_given, locate_root
from components.history.records import RUN_ROOT_KEY
from detection.datasets.layouts import WHOLE, Division
from detection.storage.paths import absolute, require_supported
from schemas.config.config import DataConfig
from schemas.config.issues import MAX_PIXELS, IssuePolicies
from schemas.errors import ConfigError


class CocoExampleGenSpec(ComponentSpec):
    """Files in, Examples out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        SPLITS_KEY: ExecutionParameter(type=str, optional=True),
        DATA_KEY: ExecutionParameter(type=str, optional=True),
        "data_root": ExecutionParameter(type=str, optional=True),
        "data_span": ExecutionParameter(type=str, optional=True),
        ON_FAULT_KEY: ExecutionParameter(type=str),
        MAX_PIXELS_KEY: ExecutionParameter(type=int),
        LABEL_MAP_KEY: ExecutionParameter(type=str, optional=True),
        PINNED_SPAN_KEY: ExecutionParameter(type=int, optional=True),
        PINNED_VERSION_KEY: ExecutionParameter(type=int, optional=True),
        DATA_SOURCE_KEY: ExecutionParameter(type=str, optional=True),
        RUN_ROOT_KEY: ExecutionParameter(type=str, optional=True),
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
        run_root: str | None = None,
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
            run_root: folder of the run, with the history; None: nothing is recorded.

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
        spec = CocoExampleGenSpec(
            splits=splits_to_json(pinned_to(located.splits, version)),
            on_fault=(on_fault or IssuePolicies()).model_dump_json(),
            max_pixels=max_pixels,
            label_map=label_map and absolute(label_map),
            pinned_span=span,
            pinned_version=version,
            data_source=data_source(data_root, splits or {}),
            run_root=run_root,
            examples=types.Channel(type=standard_artifacts.Examples),
        )
        super(FileBasedExampleGen, self).__init__(spec=spec)


class RemoteCocoExampleGen(FileBasedExampleGen):
    """`CocoExampleGen` for compiled pipelines: locates its data when it runs, not when it is constructed."""

    SPEC_CLASS = CocoExampleGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(
        self, data: DataConfig, *, data_root: RuntimeParameter, data_span: RuntimeParameter, run_root: str
    ) -> None:
        """Creates the component; no file is read.

        Args:
            data: data set, options of reading it, and what is done about its issues.
            data_root: replaces `data.root`.
            data_span: replaces `data.span`.
            run_root: folder of the run, with the history.

        Raises:
            ConfigError: no data set, or two.
        """
        require_one_data_set(data)
        elsewhere = {"window", ON_FAULT_KEY, MAX_PIXELS_KEY, LABEL_MAP_KEY}
        spec = CocoExampleGenSpec(
            data=data.model_dump_json(exclude=elsewhere),
            data_root=data_root,
            data_span=data_span,
            on_fault=data.on_fault.model_dump_json(),
            max_pixels=data.max_pixels,
            label_map=data.label_map,
            run_root=run_root,
            examples=types.Channel(type=standard_artifacts.Examples),
        )
        super(FileBasedExampleGen, self).__init__(spec=spec)
        self.with_id(CocoExampleGen.__name__)
