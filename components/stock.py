"""TFX's StatisticsGen and ExampleValidator, with a record of each execution."""

import tfx.components.example_validator.executor
import tfx.components.statistics_gen.executor
from tfx import components, types
from tfx.dsl.components.base import executor_spec
from tfx.types import standard_artifacts, standard_component_specs
from tfx.types.component_spec import ExecutionParameter
from tfx.version import __version__

from components.history import driver
from components.history.execution import ReuseRule, recorded
from components.history.records import RUN_ROOT_KEY

_RULE = ReuseRule(code=__version__)


class Driver(driver.Driver):
    """Reuses an execution by the same TFX."""

    RULE = _RULE


_RUN_ROOT = {RUN_ROOT_KEY: ExecutionParameter(type=str, optional=True)}


class StatisticsExecutor(tfx.components.statistics_gen.executor.Executor):
    """TFX's executor."""

    Do = recorded("StatisticsGen", _RULE)(tfx.components.statistics_gen.executor.Executor.Do)


class StatisticsGenSpec(standard_component_specs.StatisticsGenSpec):
    """Examples and Schema in, ExampleStatistics out."""

    PARAMETERS = standard_component_specs.StatisticsGenSpec.PARAMETERS | _RUN_ROOT


class StatisticsGen(components.StatisticsGen):
    """Computes statistics of each split of `Examples`."""

    SPEC_CLASS = StatisticsGenSpec
    EXECUTOR_SPEC = executor_spec.BeamExecutorSpec(StatisticsExecutor)
    DRIVER_CLASS = Driver

    def __init__(self, *, examples: types.BaseChannel, schema: types.BaseChannel, run_root: str) -> None:
        """Wires the component.

        Args:
            examples: channel of one `Examples`.
            schema: channel of the schema of its records.
            run_root: folder of the run, with the history.
        """
        statistics = types.Channel(type=standard_artifacts.ExampleStatistics)
        spec = StatisticsGenSpec(
            examples=examples, schema=schema, run_root=run_root, exclude_splits="[]", statistics=statistics
        )
        super(components.StatisticsGen, self).__init__(spec=spec)


class ValidatorExecutor(tfx.components.example_validator.executor.Executor):
    """TFX's executor."""

    Do = recorded("ExampleValidator", _RULE)(tfx.components.example_validator.executor.Executor.Do)


class ExampleValidatorSpec(standard_component_specs.ExampleValidatorSpec):
    """ExampleStatistics and Schema in, ExampleAnomalies out."""

    PARAMETERS = standard_component_specs.ExampleValidatorSpec.PARAMETERS | _RUN_ROOT


class ExampleValidator(components.ExampleValidator):
    """Compares statistics with the schema."""

    SPEC_CLASS = ExampleValidatorSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(ValidatorExecutor)
    DRIVER_CLASS = Driver

    def __init__(self, *, statistics: types.BaseChannel, schema: types.BaseChannel, run_root: str) -> None:
        """Wires the component.

        Args:
            statistics: channel of one `ExampleStatistics`.
            schema: channel of the schema of the records.
            run_root: folder of the run, with the history.
        """
        anomalies = types.Channel(type=standard_artifacts.ExampleAnomalies)
        spec = ExampleValidatorSpec(
            statistics=statistics, schema=schema, run_root=run_root, exclude_splits="[]", anomalies=anomalies
        )
        super(components.ExampleValidator, self).__init__(spec=spec)
