"""Decides from the records whether an execution is reused, before it runs.

A driver is a hook of TFX's, which its FileBasedExampleGen uses.  The outputs of a reused execution are those that its
record names, marked as external: TFX then neither makes nor removes their folders, and `execution.recorded` returns
at once.  ML Metadata is not asked.
"""

import logging

from tfx.dsl.components.base import base_driver
from tfx.orchestration import data_types_utils, metadata
from tfx.orchestration.portable import base_driver as portable_driver
from tfx.orchestration.portable.data_types import ExecutionInfo
from tfx.proto.orchestration.driver_output_pb2 import DriverOutput

from components.history.execution import read_uris
from components.history.files import damage_of
from components.history.read import removed_versions
from components.history.records import DEFAULT_RULE, DESTINATION_PROPERTY, RUN_ROOT_KEY, Record, ReuseRule, read_records
from components.history.stand_ins import fill
from detection.storage.paths import join

_LOGGER = logging.getLogger("cocoflow.run")


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
        component = execution_info.pipeline_node.node_info.id
        record = None
        if self.RULE is not None:
            inputs = read_uris(execution_info.input_dict)
            key = self.RULE.key(component, parameters=parameters, inputs=inputs, root=root)
            record = _reusable(root, component, key)
        for name, [artifact] in execution_info.output_dict.items():
            if record is None:
                artifact.uri = join(root, "artifacts", component, name, execution_info.pipeline_run_id)
            else:
                fill(artifact, record.output(name))
                artifact.is_external = True
            result.output_artifacts[name].artifacts.append(artifact.mlmd_artifact)
        if record is not None:
            logging.getLogger(__name__).info("%s reuses the execution of run %s", component, record.run)
        return result


def _reusable(root: str, component: str, key: str) -> Record | None:
    """Returns the record of the newest equal execution whose files are as they were."""
    done = [record for record in read_records(root, component, key=key) if record.state == "done"]
    for record in reversed(done):
        damage = damage_of(record)
        if damage is None:
            return record
        _log_damage(root, record, damage)
    return None


def _log_damage(root: str, record: Record, damage: str) -> None:
    """Logs why an execution is not reused; a version that a later push removed is no damage."""
    pushed = {str(output.properties.get(DESTINATION_PROPERTY)) for output in record.outputs.get("pushed_model", [])}
    later = read_records(root, record.component) if pushed else []
    for version in pushed & {removed for one in later for removed in removed_versions(one)}:
        _LOGGER.info("%s: %s was removed by push.keep_versions, so its push is not reused", record.component, version)
        return
    _LOGGER.warning("%s: %s, so this result is not reused", record.component, damage)


class SelectingDriver(Driver):
    """Driver of a component that selects from the history, which changes with each run."""

    RULE = None
