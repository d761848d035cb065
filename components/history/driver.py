"""Decides from the records whether an execution is reused, before it runs.

A driver is a hook of TFX's, which its FileBasedExampleGen uses.  The outputs of a reused execution are those that its
record names, marked as external: TFX then neither makes nor removes their folders, and `execution.recorded` returns
at once.  ML Metadata is not asked.
"""

import logging
from collections.abc import Callable
from typing import Any

from tfx.dsl.component.experimental.decorators import component
from tfx.dsl.components.base import base_driver
from tfx.orchestration import data_types_utils, metadata
from tfx.orchestration.portable import base_driver as portable_driver
from tfx.orchestration.portable.data_types import ExecutionInfo
from tfx.proto.orchestration.driver_output_pb2 import DriverOutput

from components.history.execution import DEFAULT_RULE, ReuseRule, fill, read_uris, recorded
from components.history.queries import History
from components.history.records import RUN_ROOT_KEY
from detection.storage.paths import join
from schemas.artifacts import ARTIFACTS


class Driver(base_driver.BaseDriver, portable_driver.BaseDriver):
    """Reuses the newest equal execution whose files are as they were; otherwise names the outputs after the run.

    Without the parameter `RUN_ROOT_KEY`, TFX names them.
    """

    RULE: ReuseRule | None = DEFAULT_RULE  # as the executor's `recorded` has it; None: nothing is reused

    def __init__(self, metadata_handle: metadata.Metadata) -> None:
        """Creates the driver; TFX calls it."""
        base_driver.BaseDriver.__init__(self, metadata_handle)
        portable_driver.BaseDriver.__init__(self, metadata_handle)

    def run(self, execution_info: ExecutionInfo) -> DriverOutput:
        """Returns the resolved parameters and the outputs; TFX calls it.

        Raises:
            DataError: a record cannot be read.
        """
        given = execution_info.exec_properties
        parameters = self.resolve_exec_properties(dict(given), None, None)
        result = DriverOutput()
        for name, value in parameters.items():
            if value is not None:
                data_types_utils.set_metadata_value(result.exec_properties[name], value)
        root = parameters.get(RUN_ROOT_KEY)
        if not root:
            return result
        node = execution_info.pipeline_node.node_info.id
        reused = None
        if self.RULE is not None:
            inputs = read_uris(execution_info.input_dict)
            key = self.RULE.key(node, parameters=parameters, inputs=inputs, root=root)
            reused = History(root).reusable(node, key)
        for name, [artifact] in execution_info.output_dict.items():
            if reused is None:
                artifact.uri = join(root, ARTIFACTS, node, name, execution_info.pipeline_run_id)
            else:
                fill(artifact, reused.output(name))
                artifact.is_external = True
            result.output_artifacts[name].artifacts.append(artifact.mlmd_artifact)
        if reused is not None:
            logging.getLogger(__name__).info("%s reuses the execution of run %s", node, reused.run)
        return result


class SelectingDriver(Driver):
    """Driver of a component that selects from the history, which changes with each run."""

    RULE = None


def selection_component(node: str) -> Callable[[Callable[..., None]], Any]:
    """Makes a component of a function, as TFX's decorator does; it is recorded, and never reused.

    Args:
        node: id of the node.
    """

    def decorate(function: Callable[..., None]) -> Any:
        made: Any = component(function)
        executor = made.EXECUTOR_SPEC.executor_class
        executor.Do = recorded(node)(executor.Do)
        made.DRIVER_CLASS = SelectingDriver
        return made

    return decorate
