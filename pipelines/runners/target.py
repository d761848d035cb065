"""A platform that runs compiled pipelines: its properties and its client."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from pipelines.runners.schedules import Recurring
from schemas.config.config import Config
from schemas.config.recurrence import ScheduleConfig


class Target(Protocol):
    """A platform that runs compiled pipelines; an instance is a connection to it.

    Every method of an instance raises CocoflowError if the platform refuses it or cannot be reached.

    Args:
        config: complete configuration.

    Attributes:
        suffix: ending of the compiled file, by which the platform's clients recognize its format.
        schema_2_1: True for pipelines of schema 2.1, False for 2.0.
        accelerators: form of the names of accelerators.
        accelerator_examples: examples of these names, for a message.
        has_nodes: True if node selectors and tolerations choose nodes.
        runs_drivers: True if drivers run before the cache is searched.
        runs_custom_jobs: True if the trainer may be a Vertex custom job.

    Raises:
        CocoflowError: no credentials, or no service.
    """

    suffix: ClassVar[str]
    schema_2_1: ClassVar[bool]
    accelerators: ClassVar[re.Pattern[str]]
    accelerator_examples: ClassVar[str]
    has_nodes: ClassVar[bool]
    runs_drivers: ClassVar[bool]
    runs_custom_jobs: ClassVar[bool]

    def __init__(self, config: Config) -> None: ...

    @staticmethod
    def write(job: dict[str, Any], defaults: Mapping[str, Any], platform: Mapping[str, Any] | None) -> str:
        """Returns the text of the compiled file.

        Args:
            job: the compiled job.
            defaults: defaults of the pipeline's parameters.
            platform: document of `resources.add_resources`; None: no document.
        """

    @staticmethod
    def check_schedule(schedule: ScheduleConfig) -> None:
        """Requires that the platform has what a schedule asks for.

        Raises:
            ConfigError: it has not.
        """

    def submit(self, compiled: str, parameters: Mapping[str, str | int]) -> str:
        """Starts a run and returns its name.

        Args:
            compiled: text of the compiled pipeline.
            parameters: values of this run.
        """

    def address(self, run: str) -> str:
        """Returns the address of a run's page."""

    def state(self, run: str) -> tuple[str, str]:
        """Returns the state of a run, SUCCEEDED or FAILED for example, and the error message, perhaps empty."""

    def schedules(self, name: str | None = None) -> list[Recurring]:
        """Returns the schedules of pipelines; `name` selects those with this name."""

    def create_schedule(
        self,
        name: str,
        compiled: str,
        parameters: Mapping[str, str | int],
        schedule: ScheduleConfig,
        replaced: Recurring | None,
    ) -> Recurring:
        """Creates a schedule.

        Args:
            name: name of the schedule.
            compiled: text of the compiled pipeline.
            parameters: values of its runs.
            schedule: when it runs.
            replaced: schedule of this name that it replaces; None: a new name.
        """

    def change_schedule(self, action: str, schedule: Recurring) -> None:
        """Changes a schedule; runs that began continue.

        Args:
            action: "pause" starts no more runs, "resume" continues and skips the runs in between, "delete" removes it.
            schedule: the schedule.
        """
