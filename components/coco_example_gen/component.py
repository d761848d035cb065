"""The example gen's contract: what goes in and what comes out."""

import os
from collections.abc import Mapping
from typing import Literal

from tfx import types
from tfx.components import FileBasedExampleGen
from tfx.dsl.components.base import executor_spec
from tfx.proto import example_gen_pb2
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.coco_example_gen.driver import Driver
from components.coco_example_gen.executor import ON_FAULT_KEY, SPLITS_KEY, Executor, splits_to_json
from detection.coco.layouts import SplitFiles, find_splits, given_splits
from schemas.errors import ConfigError


class CocoExampleGenSpec(ComponentSpec):
    """Files in, Examples out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        SPLITS_KEY: ExecutionParameter(type=str),
        ON_FAULT_KEY: ExecutionParameter(type=str),
        # What TFX's own driver, which Kubeflow runs in place of ours, needs for its fingerprint.
        keys.INPUT_BASE_KEY: ExecutionParameter(type=str),
        keys.INPUT_CONFIG_KEY: ExecutionParameter(type=example_gen_pb2.Input),
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
        splits: Mapping[str, tuple[str, str]] | None = None,
        on_fault: Literal["fail", "drop"] = "fail",
        eval_fraction: float = 0.1,
    ) -> None:
        """Finds the files and wires the component.

        Args:
            data_root: folder in one of the recognised layouts.
            splits: instead of it, split name -> (annotation file, image folder).
            on_fault: "fail" refuses the data set, listing what is faulty; "drop" leaves
                faulty images and annotations out and lists them in quarantine.jsonl.
            eval_fraction: share of images, by hash of the id, for `eval` where it has
                no file of its own.

        Raises:
            ConfigError: neither or both of `data_root` and `splits`.
            DataError: the files are not there, or not recognised.
        """
        if bool(data_root) == bool(splits):
            raise ConfigError(
                "Name one data set: --data DIR (data.root), or data.splits.<name>.annotations and .images, not both."
            )
        if data_root:
            found = find_splits(os.path.abspath(data_root), eval_fraction=eval_fraction)
        else:
            found = given_splits(_absolute(splits or {}), eval_fraction=eval_fraction)
        spec = CocoExampleGenSpec(
            splits=splits_to_json(found),
            on_fault=on_fault,
            input_base=os.path.abspath(data_root or "/"),
            input_config=_input_config(found),
            examples=types.Channel(type=standard_artifacts.Examples),
        )
        super(FileBasedExampleGen, self).__init__(spec=spec)


def _absolute(splits: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    return {
        name: (os.path.abspath(annotations), os.path.abspath(images)) for name, (annotations, images) in splits.items()
    }


def _input_config(splits: Mapping[str, SplitFiles]) -> example_gen_pb2.Input:
    patterns = []
    for name, files in splits.items():
        patterns += [(name, files.annotations), (f"{name}-images", os.path.join(files.images, "*"))]
    return example_gen_pb2.Input(
        splits=[example_gen_pb2.Input.Split(name=name, pattern=pattern) for name, pattern in patterns]
    )
