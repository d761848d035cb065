"""The component's contract: parameters, and the `Examples` artifact that it writes."""

from typing import Any

from tfx import types
from tfx.components import FileBasedExampleGen
from tfx.dsl.components.base import executor_spec
from tfx.orchestration.data_types import RuntimeParameter
from tfx.types import standard_artifacts
from tfx.types import standard_component_specs as keys
from tfx.types.component_spec import ChannelParameter, ComponentSpec, ExecutionParameter

from components.coco_example_gen.executor import Executor
from components.coco_example_gen.spans.locate import require_one_data_set
from components.coco_example_gen.spans.resolution import DATA_KEY, REUSE_RULE, resolve
from components.history import driver
from components.history.records import RUN_ROOT_KEY
from detection.storage.paths import require_supported
from schemas.config.config import DataConfig


class Driver(driver.Driver):
    """Finds the span and its version, and fingerprints its annotation files and the images that they name.

    TFX's own driver takes the files that patterns match, whether used or not, and
    sees a change within one second as none.
    """

    RULE = REUSE_RULE

    def resolve_exec_properties(self, exec_properties: dict[str, Any], *_: object) -> dict[str, Any]:
        """Replaces patterns by the files that are read: these decide about reuse.

        Raises:
            ConfigError: the keys about spans do not fit the data's paths.
            DataError: the files are missing or not recognized.
        """
        return resolve(exec_properties)


class CocoExampleGenSpec(ComponentSpec):
    """Files in, Examples out."""

    PARAMETERS = {  # noqa: RUF012 (TFX's form)
        DATA_KEY: ExecutionParameter(type=str),
        "data_root": ExecutionParameter(type=str, optional=True),
        "data_span": ExecutionParameter(type=str, optional=True),
        RUN_ROOT_KEY: ExecutionParameter(type=str, optional=True),
    }
    INPUTS: dict[str, ChannelParameter] = {}  # noqa: RUF012
    OUTPUTS = {keys.EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples)}  # noqa: RUF012


class CocoExampleGen(FileBasedExampleGen):
    """Makes `Examples` from a COCO data set.

    Plain TFRecords of `tf.train.Example` with the keys of `schemas.features`, one split
    per annotation file; beside them dataset.json and quarantine.jsonl.  Runs again when
    an annotation file or an image that it names has changed.  The files are located when it runs.
    """

    SPEC_CLASS = CocoExampleGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(Executor)
    DRIVER_CLASS = Driver

    def __init__(
        self,
        data: DataConfig | str,
        *,
        data_root: str | RuntimeParameter | None = None,
        data_span: str | RuntimeParameter | None = None,
        run_root: str | None = None,
    ) -> None:
        """Creates the component; no file is read.

        Args:
            data: folder of a data set; or the data set, options of reading it, and what is done about its issues.
            data_root: replaces `data.root`.
            data_span: replaces `data.span`.
            run_root: folder of the run, with the history; None: nothing is recorded.

        Raises:
            ConfigError: no data set, or two.
        """
        if isinstance(data, str):
            data = DataConfig(root=data)
        require_one_data_set(data)
        require_supported(data.label_map or "", "data.label_map")
        spec = CocoExampleGenSpec(
            data=data.model_dump_json(exclude={"window"}),
            data_root=data_root,
            data_span=data_span,
            run_root=run_root,
            examples=types.Channel(type=standard_artifacts.Examples),
        )
        super(FileBasedExampleGen, self).__init__(spec=spec)
